"""A batch -> tensors -> hidden states -> losses: one decoder for many families of models (docs/models.md lists them).

    x = embedding(tokens)
    x = x + attention(norm(x));  x = x + feed_forward(norm(x))      layer by layer
    losses = cross-entropy of norm(x) against the unembedding

A spec may have norms elsewhere, sliding layers, biases, scales, caps and other activations.

Weights stay float32. `precision` is the type of what flows between them: autocast casts a matrix where it is used;
norms, rotations and losses compute in float32 whatever flows.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.nn.functional import linear
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from trivium.engine.base import Recompute
from trivium.engine.draw import first_values
from trivium.engine.grow import VOCAB_MATRICES
from trivium.engine.torch.attention import PLAIN, Layout, WholeRows
from trivium.engine.torch.context_parallel.axis import WHOLE, ContextAxis
from trivium.engine.torch.context_parallel.layouts import FromStarts, shared_layout
from trivium.engine.torch.layers import Layer, RMSNorm, Rotation
from trivium.engine.torch.loss import (
    LogitForm,
    Losses,
    LossTargets,
    Objective,
    ReferenceStates,
    own_losses,
    sliced_loss,
)
from trivium.engine.torch.tensor_parallel.axis import ALONE, TensorAxis, embed
from trivium.model.parts import part_of
from trivium.model.spec import AttentionSpec, ModelSpec, RopeSpec
from trivium.rows.batch import IGNORED, PADDING, Batch

ATTENTION = (
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
    torch.ops.aten._scaled_dot_product_cudnn_attention.default,
    torch.ops.higher_order.flex_attention,
)
PRODUCTS = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)  # without and with a bias
ALIGNED = 16  # bytes: a view of any type may begin there
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class DeviceBatch:
    """One micro-batch as the decoder wants it."""

    tokens: Tensor  # (B, T)
    rotation: Rotation
    layout: Layout
    targets: LossTargets
    places: "Places | None" = None  # for a model or a loss of the user's own
    positions: Tensor | None = None  # (B, T) in their documents; None where they count through the row
    by_source: Tensor | None = None  # (sources, B), 1 where a row is of the source
    not_padding: Tensor | None = None  # (B, T), 1 where a slot is a document's; None where all are

    @classmethod
    def of(
        cls,
        batch: Batch,
        table: Rotation,
        document_mask: bool,
        *,
        context: ContextAxis = WHOLE,
        attends: bool = True,
        kinds: Sequence[AttentionSpec] = (PLAIN,),
        places: bool = False,
        row_weights: NDArray[np.float32] | None = None,
    ) -> "DeviceBatch":
        """Copies, so that the loader may use its arrays again. Joined documents count positions through the row.

        Of rows that ranks share, T is the slots of this one. `attends` is False where the model asks no layout, `kinds`
        are the ways in which its layers see, `places` is True where something asks for places. `row_weights` (B,) are
        what the losses of rows are multiplied by.
        """
        device = table.cos.device
        batch = batch if document_mask else batch.joined()
        layout = shared_layout(context, batch.segments, document_mask, device, kinds) if attends else WholeRows()
        if context.size > 1:
            batch = context.share(batch.seq_len).of_batch(batch)
        targets = batch.targets.reshape(-1)
        at = np.flatnonzero(targets != IGNORED)
        arrays = {
            "tokens": batch.tokens,
            "targets": targets[at].astype(np.int64),
            "by_source": (batch.source == np.arange(len(batch.sources))[:, None]).astype(np.uint8),
        }
        if at.size < targets.size:
            arrays["at"] = at
        if row_weights is not None:
            arrays["weight_bits"] = row_weights[at // batch.seq_len].view(np.int32)
        if (batch.positions != np.arange(batch.seq_len)).any():
            arrays["positions"] = batch.positions
        if places:
            arrays |= {"place": batch.positions, "document": batch.segments}
        if (batch.segments == PADDING).any():
            arrays["not_padding"] = (batch.segments != PADDING).astype(np.uint8)
        if isinstance(layout, FromStarts):
            arrays["starts"] = layout.starts
        there = to_device(arrays, device)
        positions = there.get("positions")
        return cls(
            tokens=there["tokens"],
            rotation=table.of_rows(batch.seq_len, positions),
            layout=layout.make(there["starts"]) if isinstance(layout, FromStarts) else layout,
            targets=LossTargets(there["targets"], there.get("at"), there.get("weight_bits")),
            places=Places(there["place"], there["document"]) if places else None,
            positions=positions,
            by_source=there["by_source"],
            not_padding=there.get("not_padding"),
        )


@dataclass(frozen=True, slots=True)
class Places:
    """Where every token is, (B, T) each."""

    positions: Tensor  # in their document
    documents: Tensor  # numbers within a row, -1 in padding


def to_device(arrays: Mapping[str, NDArray[Any]], device: torch.device) -> dict[str, Tensor]:
    """Copies of these arrays, which share one block of memory, by one copy.

    A GPU copies pinned memory while the processor goes on. torch gives a pinned block out again only when the copy from
    it is over, so that nobody waits.
    """
    starts = np.cumsum([0, *(-(-array.nbytes // ALIGNED) * ALIGNED for array in arrays.values())]).tolist()
    is_gpu = device.type == "cuda"
    block = torch.empty(starts[-1], dtype=torch.uint8, pin_memory=is_gpu)
    views = [
        block[start : start + array.nbytes].numpy().view(array.dtype).reshape(array.shape)
        for start, array in zip(starts, arrays.values(), strict=False)
    ]
    for view, array in zip(views, arrays.values(), strict=True):
        view[...] = array
    there = block.to(device, non_blocking=is_gpu)
    return {
        name: there[start : start + array.nbytes].view(torch.from_numpy(view).dtype).view(array.shape)
        for (name, array), start, view in zip(arrays.items(), starts, views, strict=False)
    }


class LanguageModel(nn.Module):
    """Hidden states -> losses and logits; `Decoder`, `TransformersModel` and `OwnModel` make the hidden states.

    `forward` ends in losses, so that no whole logits need exist. It is made on the meta device.
    """

    spec: ModelSpec
    precision: torch.dtype  # of what flows; set by the engine
    recompute: Recompute = "none"  # set by the engine for each stage
    layers: nn.ModuleList  # compiled and sharded one by one
    axis: TensorAxis = ALONE  # of the ranks that share its matrices

    @property
    def lm_head(self) -> nn.Module:
        """The module whose weight (vocabulary, width), which may be padded, makes logits of hidden states."""
        raise NotImplementedError

    @property
    def logit_form(self) -> LogitForm:
        """How logits are scaled and capped."""
        return LogitForm(self.spec.logit_scale, self.spec.logit_softcap)

    def hidden(self, batch: DeviceBatch) -> Tensor:
        """Hidden states (B, T, width)."""
        raise NotImplementedError

    def weights(self) -> dict[str, nn.Parameter]:
        """Every parameter, by the name that it is drawn, optimized and saved by."""
        return dict(self.named_parameters())

    def vocab_rows(self) -> tuple[str, ...]:
        """The parameters that have a row for every token."""
        return tuple(name for name in VOCAB_MATRICES if name in self.weights())

    def part_of(self, name: str) -> str:
        """The part of the model that a parameter belongs to, which a stage may freeze."""
        return part_of(name)

    def constants(self) -> dict[str, Tensor]:
        """Tensors that belong to the weights and that nothing trains, whole on every rank."""
        return {}

    def tensors(self) -> dict[str, Tensor]:
        """All that a checkpoint has of a model, by name."""
        return {**{name: parameter.detach() for name, parameter in self.weights().items()}, **self.constants()}

    def cached_generation(self, held: Any, prompts: Sequence[NDArray[np.integer]], device: torch.device) -> Any:
        """A `Generation` by a cache of the model's own; None where the engine has one for it."""
        return None

    def fill_constants(self) -> None:
        """Give values to what has them without a seed or a folder; called once the model has memory."""

    def split_matrices(self, mesh: DeviceMesh) -> None:
        """Let a model without storage hold this rank's part of its matrices."""
        raise NotImplementedError

    def set_rope(self, rope: RopeSpec) -> None:
        """From now on these rotary positions, where they are not given with each batch."""

    def grouped_as(self, name: str) -> str:
        """The name by which a parameter is put into the optimizer's groups."""
        return name

    def first_values(
        self, name: str, shape: tuple[int, ...], where: tuple[slice, ...], seed: int
    ) -> NDArray[np.float32]:
        """The first values of a part of a parameter."""
        return first_values(name, shape, where, self.spec, seed)

    def init_weight(self, name: str, shape: torch.Size, generator: torch.Generator) -> Tensor | None:
        """A parameter's first values where the model has a rule of its own."""
        return None

    def forward(self, batch: DeviceBatch, objective: Objective, references: Sequence[ReferenceStates] = ()) -> Losses:
        """Losses of every token."""
        return self.losses(self.hidden(batch).flatten(0, 1), batch, objective, references)

    def losses(
        self, hidden: Tensor, batch: DeviceBatch, objective: Objective, references: Sequence[ReferenceStates] = ()
    ) -> Losses:
        """Losses of hidden states (tokens, width)."""
        last = (self.spec.vocab, objective, references, self.axis, self.logit_form)

        def losses(lm_head: Tensor) -> Losses:
            if objective.token_losses is None:
                return sliced_loss(hidden, lm_head, batch.targets, *last)
            assert batch.places is not None, "a loss of one's own is given places"
            places = (batch.tokens, batch.places.positions, batch.places.documents)
            return own_losses(hidden, lm_head, batch.targets, places, *last)

        return self.use_lm_head(losses)

    def use_lm_head(self, use: Callable[[Tensor], Result]) -> Result:
        """What `use` makes of the lm_head's weight: of the rows that this rank of the tensor axis has, gathered."""
        return use(own_rows(self.lm_head.weight))  # type: ignore[arg-type]

    def states(self, batch: DeviceBatch) -> ReferenceStates:
        """What a loss needs of a frozen model; on many ranks until its gathered weights are let go."""
        return ReferenceStates(
            self.hidden(batch).flatten(0, 1), self.use_lm_head(lambda weight: weight), self.logit_form
        )

    def next_logits(self, batch: DeviceBatch, ends: Tensor) -> Tensor:
        """Logits (ends, vocab) in float32 of what follows some slots, counted through all rows."""
        return self._logits(self.hidden(batch).flatten(0, 1)[ends])

    def logits(self, batch: DeviceBatch) -> Tensor:
        """Whole logits (B, T, vocab) in float32: for small inputs, not for training."""
        return self._logits(self.hidden(batch))

    def _logits(self, hidden: Tensor) -> Tensor:
        part = self.use_lm_head(lambda weight: linear(hidden, weight.to(hidden.dtype)))
        return self.logit_form.apply(self.axis.join(part, part.ndim - 1)[..., : self.spec.vocab].float())


def recomputed(model: LanguageModel, forward: Callable[..., Any]) -> Callable[..., Any]:
    """A layer's forward pass, of which the backward pass computes again what the model's `recompute` says."""

    def run(*inputs: Any, **named: Any) -> Any:
        if model.recompute == "none" or not torch.is_grad_enabled():
            return forward(*inputs, **named)
        kept: dict[str, Any] = {"context_fn": partial(_kept, model.spec)} if model.recompute == "selective" else {}
        return checkpoint(forward, *inputs, use_reentrant=False, **kept, **named)

    return run


def _kept(spec: ModelSpec) -> tuple[Any, Any]:
    """For one layer's pass, and for its second one: attention is kept, and every second product with a matrix.

    Of query, key, value, output, gate, up and down those are key, output and up; without a gate, key and output. The
    last product is never kept: where no norm follows it, no gradient needs its result.
    """
    products: Counter[bool] = Counter()
    last = 7 if spec.gated else 6

    def policy(context: Any, operation: Any, *_args: Any, **_kwargs: Any) -> CheckpointPolicy:
        if operation in PRODUCTS:
            products[context.is_recompute] += 1
            number = products[context.is_recompute]
            return _policy(number % 2 == 0 and number != last)
        return _policy(operation in ATTENTION)

    return create_selective_checkpoint_contexts(policy)  # type: ignore[no-any-return, no-untyped-call]


def _policy(is_kept: bool) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if is_kept else CheckpointPolicy.PREFER_RECOMPUTE


@contextmanager
def uncompiled(model: LanguageModel) -> Iterator[None]:
    """Inside, layers run as they are written.

    Each further shape of rows would be compiled, and after eight of them torch runs training itself uncompiled.
    """
    compiled = [layer._compiled_call_impl for layer in model.layers]
    try:
        for layer in model.layers:
            layer._compiled_call_impl = None
        yield
    finally:
        for layer, call in zip(model.layers, compiled, strict=True):
            layer._compiled_call_impl = call


class LMHead(nn.Linear):
    """The matrix that makes logits, used inside a call of the module: FSDP gathers it for that."""

    def forward(self, use: Callable[[Tensor], Any]) -> Any:  # type: ignore[override]
        return use(own_rows(self.weight))


class Embedding(nn.Embedding):
    """Tokens -> vectors, to be summed over the ranks that share its rows."""

    def forward(self, tokens: Tensor, axis: TensorAxis) -> Tensor:  # type: ignore[override]
        return embed(tokens, own_rows(self.weight), axis)


def own_rows(weight: Tensor) -> Tensor:
    """The rows of a matrix that this rank of the tensor axis has."""
    return weight.to_local() if isinstance(weight, DTensor) else weight


class Decoder(LanguageModel):
    """The built-in decoder."""

    def __init__(self, spec: ModelSpec, precision: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.spec = spec
        self.precision = precision
        self.embedding = Embedding(spec.padded_vocab, spec.width)
        self.layers = nn.ModuleList(Layer(spec, number) for number in range(spec.layers))
        self.norm = RMSNorm(spec.width, spec.norm_eps)
        self.unembedding = None if spec.tied_embeddings else LMHead(spec.width, spec.padded_vocab, bias=False)
        for layer in self.layers:
            layer.forward = recomputed(self, layer.forward)

    @property
    def lm_head(self) -> nn.Linear | nn.Embedding:
        return self.embedding if self.unembedding is None else self.unembedding

    def use_lm_head(self, use: Callable[[Tensor], Result]) -> Result:
        result: Result = super().use_lm_head(use) if self.unembedding is None else self.unembedding(use)
        return result

    def split_matrices(self, mesh: DeviceMesh) -> None:
        from trivium.engine.torch.tensor_parallel.styles import split_matrices  # which imports this module

        split_matrices(self, mesh)

    def hidden(self, batch: DeviceBatch) -> Tensor:
        """Hidden states (B, T, width) after the last norm."""
        x = self.axis.scatter(self.embedding(batch.tokens, self.axis))
        if self.spec.embedding_scale != 1:
            x = x * self.spec.embedding_scale
        x = x.to(self.precision)
        with torch.autocast(x.device.type, self.precision, enabled=self.precision != torch.float32):
            for number, layer in enumerate(self.layers):
                x = layer(x, batch.rotation.of_layer(number, number in self.spec.sliding), batch.layout)
            hidden: Tensor = self.norm(x)
        return self.axis.gather(hidden, batch.tokens.shape[1])

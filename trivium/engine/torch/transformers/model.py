"""A batch -> hidden states, by a causal language model of the package transformers.

The model is transformers' own code, made on the meta device and filled by its parameters' names. Its attention asks our
layouts, its lm_head is used by our sliced loss, its experts' balancing loss joins the objective; nothing else of it is
replaced. It is called in evaluation mode: dropout is refused, so that both modes are the same pass.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.experimental import implicit_replication

from trivium.engine.torch.loss import Losses, Objective, ReferenceStates
from trivium.engine.torch.model import DeviceBatch, LanguageModel, own_rows, recomputed
from trivium.engine.torch.tensor_parallel.axis import TensorAxis
from trivium.engine.torch.transformers.experts import balance_of
from trivium.engine.torch.transformers.first_values import rules_of
from trivium.engine.torch.transformers.make import counted, layers_of, make_inner, parts_of_model
from trivium.engine.torch.transformers.tensor import split_matrices, to_be_divided
from trivium.model.foreign import with_rope
from trivium.model.spec import ModelSpec, RopeSpec

Result = TypeVar("Result")


class TransformersModel(LanguageModel):
    """Hidden states are those of the model inside, whose names the parameters have."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.spec = counted(spec)
        self.precision = torch.float32
        inner: Any
        inner, numbers = make_inner(spec)
        self.rules = rules_of(inner, numbers, spec.init_std)
        self.balance = balance_of(inner)
        self.architecture = type(inner).__name__
        # What a file has of a model is decided by transformers' own mapping, which is asked while nothing is tied.
        self.tied = inner.get_output_embeddings().weight is inner.get_input_embeddings().weight
        if self.tied:  # one parameter in two modules would be two once it has storage
            inner.set_output_embeddings(nn.Identity())
        self.inner: Any = inner
        self.layers = layers_of(inner, spec)
        self.rope = spec.rope
        inner.get_input_embeddings().register_forward_hook(lambda _, __, vectors: vectors.to(self.precision))
        for layer in self.layers:
            layer.forward = recomputed(self, layer.forward)

    @property
    def lm_head(self) -> nn.Module:
        head: nn.Module = self.inner.get_input_embeddings() if self.tied else self.inner.get_output_embeddings()
        return head

    def use_lm_head(self, use: Callable[[Tensor], Result]) -> Result:
        """A bias is one more column, which meets a 1 in the hidden states."""
        bias = getattr(self.lm_head, "bias", None)
        if bias is None:
            return super().use_lm_head(use)
        return super().use_lm_head(lambda weight: use(torch.cat((weight, own_rows(bias)[:, None].to(weight.dtype)), 1)))

    def split_matrices(self, mesh: DeviceMesh) -> None:
        split_matrices(self.inner, self.layers, self.spec, mesh)
        self.axis = TensorAxis(mesh)

    def hidden(self, batch: DeviceBatch) -> Tensor:
        """Hidden states (B, T, width) after the last norm; a last channel is 1 where the lm_head has a bias."""
        return self._passed(batch)[0]

    def forward(self, batch: DeviceBatch, objective: Objective, references: Sequence[ReferenceStates] = ()) -> Losses:
        """Losses of every token, and in training of the experts' balance."""
        if self.balance is None or not torch.is_grad_enabled():
            return super().forward(batch, objective, references)
        hidden, router_logits = self._passed(batch, routes=True)
        losses = self.losses(hidden.flatten(0, 1), batch, objective, references)
        weights = batch.targets.weights
        weight = len(batch.targets.tokens) if weights is None else weights.sum()
        balance = self.balance.of(router_logits, batch.not_padding) * weight
        return losses._replace(objective=losses.objective + objective.scale * balance, balance=balance.detach())

    def _passed(self, batch: DeviceBatch, *, routes: bool = False) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Hidden states, and the routers' logits where they are asked for."""
        tokens = batch.tokens
        positions = batch.positions
        if positions is None:
            positions = torch.arange(tokens.shape[1], device=tokens.device)[None]
        asked: dict[str, Any] = {"output_router_logits": True} if routes else {}
        found = self._base(input_ids=tokens, position_ids=positions, use_cache=False, layout=batch.layout, **asked)
        hidden = found.last_hidden_state
        if self.axis.mesh is not None:
            hidden = to_be_divided(hidden, self.axis.mesh)
        return self._with_ones(hidden), tuple(getattr(found, "router_logits", None) or ())

    def _base(self, **arguments: Any) -> Any:
        """The model without its lm_head, in the precision that flows."""
        device = arguments["input_ids"].device.type
        with torch.autocast(device, self.precision, enabled=self.precision != torch.float32):
            return self.inner.base_model(**arguments)

    def _with_ones(self, hidden: Tensor) -> Tensor:
        hidden = hidden.to(self.precision)
        if getattr(self.lm_head, "bias", None) is None:
            return hidden
        return torch.cat((hidden, hidden.new_ones(*hidden.shape[:-1], 1)), -1)

    def cached_logits(self, tokens: Tensor, seen: Tensor, cache: Any) -> Tensor:
        """Logits (B, vocab) of what follows rows whose slots before these are in transformers' own cache.

        `seen` (B, slots) is 1 where a slot is a token and 0 in the padding before it. By transformers' own attention.
        """
        positions = (seen.cumsum(1) - 1).clamp(min=0)[:, -tokens.shape[1] :]
        before = self.inner.config._attn_implementation
        self.inner.set_attn_implementation("eager")
        try:
            with implicit_replication():  # of masks, which all ranks of a tensor axis have whole
                found = self._base(
                    input_ids=tokens, attention_mask=seen, position_ids=positions, past_key_values=cache, use_cache=True
                )
        finally:
            self.inner.set_attn_implementation(before)
        return self._logits(self._with_ones(found.last_hidden_state[:, -1]))

    def cached_generation(self, held: Any, prompts: Sequence[NDArray[np.integer]], device: torch.device) -> Any:
        from trivium.engine.torch.transformers.generation import CachedGeneration  # which imports this module

        return CachedGeneration(held, prompts, device)

    def weights(self) -> dict[str, nn.Parameter]:
        return dict(self.inner.named_parameters())

    def vocab_rows(self) -> tuple[str, ...]:
        owners = [self.inner.get_input_embeddings()] + ([] if self.tied else [self.lm_head])
        names = {id(module): name for name, module in self.inner.named_modules()}
        return tuple(f"{names[id(each)]}.{key}" for each in owners for key, _ in each.named_parameters(recurse=False))

    def part_of(self, name: str) -> str:
        return parts_of_model(self.spec)[name]

    def constants(self) -> dict[str, Tensor]:
        """Buffers that files have too: numbers of a family that nothing trains."""
        kept = self.inner.state_dict()
        return {name: buffer for name, buffer in self.inner.named_buffers() if name in kept}

    def grouped_as(self, name: str) -> str:
        """The name by which a parameter is put into the optimizer's groups: by its module, whatever that is called."""
        owner, _, kind = name.rpartition(".")
        module = self.inner.get_submodule(owner)
        if module is self.lm_head and not self.tied:
            return f"lm_head.{kind}"
        if isinstance(module, nn.Embedding):
            return f"embedding.{kind}"
        return f"norm.{kind}" if "Norm" in type(module).__name__ else name

    def first_values(
        self, name: str, shape: tuple[int, ...], where: tuple[slice, ...], seed: int
    ) -> NDArray[np.float32]:
        """By the family's own rule."""
        return self.rules[name].part(name, shape, where, seed)

    @torch.no_grad()
    def fill_constants(self) -> None:
        """Give buffers the values that the family's rule has for them."""
        for name, buffer in self.inner.named_buffers():
            where = tuple(slice(0, size) for size in buffer.shape)
            buffer.copy_(torch.from_numpy(np.asarray(self.rules[name].part(name, tuple(buffer.shape), where, 0))))

    @torch.no_grad()
    def set_rope(self, rope: RopeSpec) -> None:
        """From now on these rotary positions: the modules that compute them are built again from a changed config."""
        if rope == self.rope:
            return
        changed = with_rope(replace(self.spec, rope=self.rope), rope)
        made, numbers = make_inner(changed)
        rules = rules_of(made, numbers, self.spec.init_std)
        for name, module in made.named_modules():
            if "Rotary" in type(module).__name__:
                own = self.inner.get_submodule(name)
                for key, value in vars(module).items():
                    if key.startswith(("rope_type", "attention_scaling")) or key.endswith("attention_scaling"):
                        setattr(own, key, value)
                for key, buffer in own.named_buffers(recurse=False):
                    given = rules[f"{name}.{key}"].given
                    assert given is not None, "frequencies are computed"
                    buffer.copy_(given)
        self.inner.config.rope_parameters = made.config.rope_parameters
        self.rope = rope

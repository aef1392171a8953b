"""A batch -> tensors -> hidden states -> losses: one decoder for the Llama, Mistral, Qwen3 and SmolLM3 families.

    x = embedding(tokens)
    x = x + attention(norm(x));  x = x + feed_forward(norm(x))      layer by layer
    losses = cross-entropy of norm(x) against the unembedding

Weights stay float32. `precision` is the type of what flows between them: autocast casts a matrix where it is used;
norms, rotations and losses compute in float32 whatever flows.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from torch.utils.checkpoint import checkpoint

from trivium.engine.torch.attention import Layout, WholeRows, layout_of
from trivium.engine.torch.layers import Layer, RMSNorm, Rotation
from trivium.engine.torch.loss import Losses, LossTargets, Objective, ReferenceStates, own_losses, sliced_loss
from trivium.model.spec import ModelSpec
from trivium.rows.batch import IGNORED, PADDING, Batch


@dataclass(frozen=True, slots=True)
class DeviceBatch:
    """One micro-batch as the decoder wants it."""

    tokens: Tensor  # (B, T)
    rotation: Rotation
    layout: Layout
    targets: LossTargets
    places: "Places | None" = None  # for a model or a loss of the user's own

    @classmethod
    def of(
        cls, batch: Batch, table: Rotation, document_mask: bool, *, attends: bool = True, places: bool = False
    ) -> "DeviceBatch":
        """Copies, so that the loader may use its arrays again. Joined documents count positions through the row.

        `attends` is False where the model asks no layout, `places` True where something asks for places.
        """
        device = table.cos.device
        targets = batch.targets.reshape(-1)
        at = np.flatnonzero(targets != IGNORED)
        return cls(
            tokens=torch.tensor(batch.tokens, device=device),
            rotation=rotation_of(batch, table, document_mask),
            layout=layout_of(batch.segments, document_mask, device) if attends else WholeRows(),
            targets=LossTargets(
                tokens=torch.tensor(targets[at], dtype=torch.int64, device=device),
                at=None if at.size == targets.size else torch.tensor(at, device=device),
            ),
            places=Places.of(batch, document_mask, device) if places else None,
        )


@dataclass(frozen=True, slots=True)
class Places:
    """Where every token is, (B, T) each."""

    positions: Tensor  # in their document
    documents: Tensor  # numbers within a row, -1 in padding

    @classmethod
    def of(cls, batch: Batch, document_mask: bool, device: torch.device) -> "Places":
        """Joined documents are one, which counts positions through the row."""
        positions, documents = batch.positions, batch.segments
        if not document_mask:
            positions = np.broadcast_to(np.arange(batch.seq_len, dtype=np.int32), positions.shape)
            documents = np.where(documents == PADDING, PADDING, 0)
        return cls(torch.tensor(positions, device=device), torch.tensor(documents, device=device))


def rotation_of(batch: Batch, table: Rotation, document_mask: bool) -> Rotation:
    """The rotation of every slot, by a table that is long enough."""
    rotation = Rotation(table.cos[:, : batch.seq_len], table.sin[:, : batch.seq_len])
    if document_mask and (batch.positions != np.arange(batch.seq_len)).any():
        return rotation.at(torch.tensor(batch.positions, device=table.cos.device))
    return rotation


class LanguageModel(nn.Module):
    """Hidden states -> losses and logits; `Decoder` and `OwnModel` make the hidden states.

    `forward` ends in losses, so that no whole logits need exist. It is made on the meta device.
    """

    spec: ModelSpec
    precision: torch.dtype  # of what flows; set by the engine, as the next
    activation_checkpointing: bool
    layers: nn.ModuleList  # compiled and sharded one by one

    @property
    def lm_head(self) -> nn.Module:
        """The module whose weight (vocabulary, width), which may be padded, makes logits of hidden states."""
        raise NotImplementedError

    def hidden(self, batch: DeviceBatch) -> Tensor:
        """Hidden states (B, T, width)."""
        raise NotImplementedError

    def weights(self) -> dict[str, nn.Parameter]:
        """Every parameter, by the name that it is drawn, optimized and saved by."""
        return dict(self.named_parameters())

    def init_weight(self, name: str, shape: torch.Size, generator: torch.Generator) -> Tensor | None:
        """A parameter's first values where the model has a rule of its own."""
        return None

    def forward(self, batch: DeviceBatch, objective: Objective, reference: ReferenceStates | None = None) -> Losses:
        """Losses of every token."""
        hidden = self.hidden(batch).flatten(0, 1)
        if objective.token_losses is None:
            return sliced_loss(hidden, self.head_weight, batch.targets, self.spec.vocab, objective, reference)
        assert batch.places is not None, "a loss of one's own is given places"
        places = (batch.tokens, batch.places.positions, batch.places.documents)
        return own_losses(hidden, self.head_weight, batch.targets, places, self.spec.vocab, objective, reference)

    @property
    def head_weight(self) -> Tensor:
        """The weight of the lm_head."""
        weight: Tensor = self.lm_head.weight  # type: ignore[assignment]
        return weight

    def next_logits(self, batch: DeviceBatch, ends: Tensor) -> Tensor:
        """Logits (ends, vocab) in float32 of what follows some slots, counted through all rows."""
        return self._logits(self.hidden(batch).flatten(0, 1)[ends])

    def logits(self, batch: DeviceBatch) -> Tensor:
        """Whole logits (B, T, vocab) in float32: for small inputs, not for training."""
        return self._logits(self.hidden(batch))

    def _logits(self, hidden: Tensor) -> Tensor:
        wide = linear(hidden, self.head_weight.to(hidden.dtype))
        return wide[..., : self.spec.vocab].float()


class Decoder(LanguageModel):
    """The built-in decoder."""

    def __init__(
        self, spec: ModelSpec, precision: torch.dtype = torch.float32, activation_checkpointing: bool = False
    ) -> None:
        super().__init__()
        self.spec = spec
        self.precision = precision
        self.activation_checkpointing = activation_checkpointing
        self.embedding = nn.Embedding(spec.padded_vocab, spec.width)
        self.layers = nn.ModuleList(Layer(spec, number) for number in range(spec.layers))
        self.norm = RMSNorm(spec.width, spec.norm_eps)
        self.unembedding = None if spec.tied_embeddings else nn.Linear(spec.width, spec.padded_vocab, bias=False)

    @property
    def lm_head(self) -> nn.Linear | nn.Embedding:
        return self.embedding if self.unembedding is None else self.unembedding

    def hidden(self, batch: DeviceBatch) -> Tensor:
        """Hidden states (B, T, width) after the last norm."""
        x = self.embedding(batch.tokens).to(self.precision)
        with torch.autocast(x.device.type, self.precision, enabled=self.precision != torch.float32):
            for layer in self.layers:
                if self.activation_checkpointing and torch.is_grad_enabled():
                    x = checkpoint(layer, x, batch.rotation, batch.layout, use_reentrant=False)
                else:
                    x = layer(x, batch.rotation, batch.layout)
            hidden: Tensor = self.norm(x)
        return hidden

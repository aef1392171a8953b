"""A batch -> tensors -> hidden states -> losses: one decoder for the Llama, Mistral, Qwen3 and SmolLM3 families.

    x = embedding(tokens)
    x = x + attention(norm(x));  x = x + feed_forward(norm(x))      layer by layer
    losses = cross-entropy of norm(x) against the unembedding

Weights stay float32. `precision` is the type of what flows between them: autocast casts a matrix where it is used;
norms, rotations and losses compute in float32 whatever flows.
"""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from torch.utils.checkpoint import checkpoint

from trivium.engine.torch.attention import Layout, layout_of
from trivium.engine.torch.layers import Layer, RMSNorm, Rotation
from trivium.engine.torch.loss import Losses, LossTargets, Objective, ReferenceStates, compute_losses
from trivium.model.spec import ModelSpec
from trivium.rows.batch import IGNORED, Batch


@dataclass(frozen=True, slots=True)
class DeviceBatch:
    """One micro-batch as the decoder wants it."""

    tokens: Tensor  # (B, T)
    rotation: Rotation
    layout: Layout
    targets: LossTargets

    @classmethod
    def of(cls, batch: Batch, table: Rotation, document_mask: bool) -> "DeviceBatch":
        """Copies, so that the loader may use its arrays again. Joined documents count positions through the row."""
        device = table.cos.device
        targets = batch.targets.reshape(-1)
        at = np.flatnonzero(targets != IGNORED)
        return cls(
            tokens=torch.tensor(batch.tokens, device=device),
            rotation=rotation_of(batch, table, document_mask),
            layout=layout_of(batch.segments, document_mask, device),
            targets=LossTargets(
                tokens=torch.tensor(targets[at], dtype=torch.int64, device=device),
                at=None if at.size == targets.size else torch.tensor(at, device=device),
            ),
        )


def rotation_of(batch: Batch, table: Rotation, document_mask: bool) -> Rotation:
    """The rotation of every slot, by a table that is long enough."""
    rotation = Rotation(table.cos[:, : batch.seq_len], table.sin[:, : batch.seq_len])
    if document_mask and (batch.positions != np.arange(batch.seq_len)).any():
        return rotation.at(torch.tensor(batch.positions, device=table.cos.device))
    return rotation


@runtime_checkable
class DecoderModel(Protocol):
    """What the engine asks of a model beside being an `nn.Module`: `Decoder` and its subclasses have it.

    It is made on the meta device and filled by its parameters' names, so that it may have no buffers.
    """

    spec: ModelSpec
    precision: torch.dtype  # of what flows; set by the engine, as the next
    activation_checkpointing: bool
    layers: nn.ModuleList  # compiled and sharded one by one

    @property
    def lm_head(self) -> nn.Linear | nn.Embedding:
        """The module whose weight (padded vocabulary, width) makes logits of hidden states."""

    def forward(self, batch: DeviceBatch, objective: Objective, reference: ReferenceStates | None = None) -> Losses:
        """Losses of every token, by `compute_losses`."""

    def hidden(self, batch: DeviceBatch) -> Tensor:
        """Hidden states (B, T, width); every layer asks `batch.layout.attend` once, which generation counts on."""

    def next_logits(self, batch: DeviceBatch, ends: Tensor) -> Tensor:
        """Logits (ends, vocab) in float32 of what follows some slots, counted through all rows."""


class Decoder(nn.Module):
    """The whole model; `forward` ends in losses, so that no whole logits need exist."""

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

    def forward(self, batch: DeviceBatch, objective: Objective, reference: ReferenceStates | None = None) -> Losses:
        hidden = self.hidden(batch).flatten(0, 1)
        return compute_losses(hidden, self.lm_head.weight, batch.targets, self.spec.vocab, objective, reference)

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

    def next_logits(self, batch: DeviceBatch, ends: Tensor) -> Tensor:
        return self._logits(self.hidden(batch).flatten(0, 1)[ends])

    def logits(self, batch: DeviceBatch) -> Tensor:
        """Whole logits (B, T, vocab) in float32: for small inputs, not for training."""
        return self._logits(self.hidden(batch))

    def _logits(self, hidden: Tensor) -> Tensor:
        wide = linear(hidden, self.lm_head.weight.to(hidden.dtype))
        return wide[..., : self.spec.vocab].float()

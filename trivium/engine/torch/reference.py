"""A folder -> a frozen model that a stage's KL is measured to: weights alone, no gradients, no optimizer.

It is made as the trained model is, so that whatever spreads that one over devices can spread this one. Its matrices
are held in the precision that flows through it: the model that it was saved from casts them to that anyway, so
that at the same weights both give the same bits. One more forward pass a step, and half or all of the weights'
memory; both only in stages with `kl`.
"""

from dataclasses import replace

import torch

from trivium.engine.base import EngineSettings, KlSettings, Precision
from trivium.engine.torch.checkpoint.weights import PRECISIONS, empty_model, engine_precision, fill
from trivium.engine.torch.layers import Rotation
from trivium.engine.torch.loss import ReferenceStates
from trivium.engine.torch.model import DeviceBatch
from trivium.model.folder import read_spec


class Reference:
    """A frozen decoder, which reads rows with its own rotary positions."""

    def __init__(self, kl: KlSettings, settings: EngineSettings, device: torch.device) -> None:
        self.folder = kl.reference
        self.precision = _precision(kl, settings, device)
        self.held = empty_model(replace(settings, float8=None), device, self.precision, PRECISIONS[self.precision])
        self.model = self.held.model
        self.model.requires_grad_(False)
        fill(self.model, kl.reference)
        self.rope = read_spec(kl.reference).rope
        self.device = device
        self._table: Rotation | None = None

    def serves(self, kl: KlSettings, settings: EngineSettings) -> bool:
        return (kl.reference, _precision(kl, settings, self.device)) == (self.folder, self.precision)

    @torch.no_grad()
    def states(self, batch: DeviceBatch, seq_len: int) -> ReferenceStates:
        """What the loss needs of these rows, or of this rank's slots of them, until `let_go`."""
        rotation = self._table_for(seq_len).of_rows(batch.tokens.shape[1], batch.positions)
        return self.model.states(replace(batch, rotation=rotation))

    def let_go(self) -> None:
        """Free what ranks have gathered for the states."""
        self.held.end_passes()

    def _table_for(self, seq_len: int) -> Rotation:
        if self._table is None or self._table.cos.shape[1] < seq_len:
            self._table = Rotation.table(self.rope, self.model.spec.rotated, seq_len, self.device)
        return self._table


def _precision(kl: KlSettings, settings: EngineSettings, device: torch.device) -> Precision:
    return kl.precision or engine_precision(settings, device)

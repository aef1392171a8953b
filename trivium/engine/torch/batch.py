"""A batch's arrays -> tensors on the device, with the rotation of every slot and what it may see."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from trivium.engine.torch.attention import Layout, layout_of
from trivium.engine.torch.layers import Rotation
from trivium.engine.torch.loss import LossTargets
from trivium.rows.batch import IGNORED, Batch


@dataclass(frozen=True, slots=True)
class DeviceBatch:
    """One micro-batch as the decoder wants it."""

    tokens: Tensor  # (B, T)
    rotation: Rotation
    layout: Layout
    targets: LossTargets

    @classmethod
    def of(cls, batch: Batch, table: Rotation, documents: Literal["masked", "joined"]) -> "DeviceBatch":
        """Copies, so that the loader may use its arrays again. Joined documents count positions through the row."""
        device = table.cos.device
        targets = batch.targets.reshape(-1)
        at = np.flatnonzero(targets != IGNORED)
        return cls(
            tokens=torch.tensor(batch.tokens, device=device),
            rotation=rotation_of(batch, table, documents),
            layout=layout_of(batch.segments, documents, device),
            targets=LossTargets(
                tokens=torch.tensor(targets[at], dtype=torch.int64, device=device),
                at=None if at.size == targets.size else torch.tensor(at, device=device),
            ),
        )


def rotation_of(batch: Batch, table: Rotation, documents: Literal["masked", "joined"]) -> Rotation:
    """The rotation of every slot, by a table that is long enough."""
    rotation = Rotation(table.cos[:, : batch.seq_len], table.sin[:, : batch.seq_len])
    if documents == "masked" and (batch.positions != np.arange(batch.seq_len)).any():
        return rotation.at(torch.tensor(batch.positions, device=table.cos.device))
    return rotation

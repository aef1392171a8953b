"""A batch's arrays -> tensors on the device, with the turn of every slot and what it may see."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from trivium.engine.torch.attention import Layout, layout_of
from trivium.engine.torch.loss import Learnt
from trivium.engine.torch.rotary import Rotation
from trivium.rows.batch import IGNORED, Batch


@dataclass(frozen=True, slots=True)
class Rows:
    """One micro-batch as the decoder wants it."""

    tokens: Tensor  # (B, T)
    rotation: Rotation
    layout: Layout
    learnt: Learnt

    @classmethod
    def of(cls, batch: Batch, table: Rotation, documents: Literal["masked", "joined"]) -> "Rows":
        """Copies, so that the loader may use its arrays again. Joined documents count positions through the row."""
        device = table.cos.device
        targets = batch.targets.reshape(-1)
        at = np.flatnonzero(targets != IGNORED)
        return cls(
            tokens=torch.tensor(batch.tokens, device=device),
            rotation=rotation_of(batch, table, documents),
            layout=layout_of(batch.segments, documents, device),
            learnt=Learnt(
                targets=torch.tensor(targets[at], dtype=torch.int64, device=device),
                at=None if at.size == targets.size else torch.tensor(at, device=device),
            ),
        )


def rotation_of(batch: Batch, table: Rotation, documents: Literal["masked", "joined"]) -> Rotation:
    """The turn of every slot, by a table that is long enough."""
    rotation = Rotation(table.cos[:, : batch.seq_len], table.sin[:, : batch.seq_len])
    if documents == "masked" and (batch.positions != np.arange(batch.seq_len)).any():
        return rotation.at(torch.tensor(batch.positions, device=table.cos.device))
    return rotation

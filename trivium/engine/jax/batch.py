"""A batch's arrays -> micro-batches on the devices: S of them, of B rows of T slots."""

import math
from typing import Any, NamedTuple

import numpy as np
from jax import Array
from jax.sharding import Mesh
from numpy.typing import NDArray

from trivium.engine.jax.sharding import put_rows, rows_multiple
from trivium.rows.batch import IGNORED, PADDING, Batch

NO_SOURCE = -1  # of a row that only fills a micro-batch


class DeviceBatch(NamedTuple):
    """Micro-batches that a compiled step scans."""

    tokens: Array  # (S, B, T)
    targets: Array  # (S, B, T); 0 where a token does not count
    loss_mask: Array  # (S, B, T) bool
    segments: Array  # (S, B, T)
    positions: Array  # (S, B, T)
    source: Array  # (S, B)

    @classmethod
    def of(cls, batch: Batch, micro_batch: int | None, mesh: Mesh) -> "DeviceBatch":
        """Micro-batches of one size, filled up with rows of padding where the batch's do not divide."""
        passes = 1 if micro_batch is None else math.ceil(batch.num_rows / micro_batch)
        multiple = rows_multiple(mesh)
        size = math.ceil(batch.num_rows / passes / multiple) * multiple
        loss_mask = batch.targets != IGNORED

        def put(array: NDArray[Any], empty: int) -> Array:
            filling = [(0, passes * size - len(array)), *[(0, 0)] * (array.ndim - 1)]
            filled = np.pad(array, filling, constant_values=empty) if filling[0][1] else array
            return put_rows(filled.reshape(passes, size, *array.shape[1:]), mesh)

        return cls(
            tokens=put(batch.tokens, 0),
            targets=put(np.where(loss_mask, batch.targets, 0), 0),
            loss_mask=put(loss_mask, 0),
            segments=put(batch.segments, PADDING),
            positions=put(batch.positions, 0),
            source=put(batch.source, NO_SOURCE),
        )

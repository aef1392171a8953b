"""A matrix with a row for every token -> the same for a larger vocabulary; no framework.

New rows are the mean of the old ones, so that a new token begins as no token in particular. The mean is of all rows in
float64, in their order, whoever holds which: it is the same bits on any layout and in either engine. An optimizer's
state of new rows is zeros. Every rank gathers each such matrix once, in its host's memory: 2 GB for 128k rows of 4,096.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

VOCAB_MATRICES = ("embedding.weight", "unembedding.weight")


def mean_row(rows: NDArray[Any]) -> NDArray[Any]:
    """The mean of rows, in their type."""
    found: NDArray[Any] = np.mean(rows, axis=0, dtype=np.float64).astype(rows.dtype)
    return found


def grown_part(
    rows: NDArray[Any], where: tuple[slice, ...], shape: tuple[int, ...], vocab: int, *, averaged: bool
) -> NDArray[Any]:
    """Of an array of this shape, the part at `where`: the old tokens' rows, new ones up to `vocab`, then zeros."""
    (first, stop), *others = (each.indices(size)[:2] for each, size in zip(where, shape, strict=True))
    columns = tuple(slice(*each) for each in others)
    kept = rows[first:stop][(slice(None), *columns)]
    part = np.zeros((stop - first, *kept.shape[1:]), rows.dtype)
    part[: len(kept)] = kept
    if averaged:
        part[max(0, len(rows) - first) : max(0, vocab - first)] = mean_row(rows)[columns]
    return part

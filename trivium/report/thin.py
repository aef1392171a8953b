"""Many points -> few that look the same: of each bucket of neighbours the least and the greatest stay.

A spike of one step in 100,000 is still drawn. Costs one pass over the values.
"""

import numpy as np
from numpy.typing import NDArray

from trivium.report.columns import Floats, Int64s


def thinned(values: Floats, points: int) -> Int64s:
    """The indices that stay, in order: all where there are at most `points`, else about so many, ends included."""
    if len(values) <= points:
        return np.arange(len(values))
    buckets = max(1, points // 2)
    width = -(-len(values) // buckets)
    filled = np.pad(values, (0, -len(values) % width), mode="edge").reshape(-1, width)
    first = np.arange(len(filled)) * width
    # NaN never wins, so that what is thinned stays as far out as it was.
    least = first + np.where(np.isnan(filled), np.inf, filled).argmin(axis=1)
    greatest = first + np.where(np.isnan(filled), -np.inf, filled).argmax(axis=1)
    ends = np.array([0, len(values) - 1])
    return np.unique(np.minimum(np.concatenate([least, greatest, ends]), len(values) - 1))


def bucket_edges(length: int, buckets: int) -> Int64s:
    """Where each of at most so many buckets of neighbours starts."""
    width = max(1, -(-length // buckets))
    return np.arange(0, length, width)


def bucket_sums(values: Floats, edges: Int64s) -> NDArray[np.float64]:
    """The sum of each bucket; what is not known counts as nothing."""
    return np.add.reduceat(np.nan_to_num(values), edges) if len(values) else np.zeros(0)

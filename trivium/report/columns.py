"""Numbers by step, a column for each figure: they grow while a run trains, are cut where it resumed, thinned to draw.

Thinning keeps the least and the greatest of each bucket of neighbours: a spike of one step in 100,000 is still drawn.
It costs one pass over the values.
"""

import math
from array import array
from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Int64s = NDArray[np.int64]


class Columns:
    """Steps in order, each with some figures; a figure that a step does not have is NaN."""

    def __init__(self) -> None:
        self._steps = array("q")
        self._values: dict[str, array[float]] = {}

    def __len__(self) -> int:
        return len(self._steps)

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def append(self, step: int, figures: Mapping[str, float]) -> None:
        """Add a step, in place of the same step and all later ones."""
        if self._steps and self._steps[-1] >= step:
            self.cut(step - 1)
        for name in figures.keys() - self._values.keys():
            self._values[name] = array("d", [math.nan]) * len(self)
        self._steps.append(step)
        for name, column in self._values.items():
            column.append(figures.get(name, math.nan))

    def cut(self, last: int) -> None:
        """Forget every step after this one."""
        kept = int(np.searchsorted(self.steps, last, side="right"))
        del self._steps[kept:]
        for column in self._values.values():
            del column[kept:]

    def after(self, past: "Columns", last: int) -> "Columns":
        """These steps after another's up to `last`, as new columns."""
        both = Columns()
        kept, own = (int(np.searchsorted(each.steps, last, side="right")) for each in (past, self))
        both._steps = past._steps[:kept] + self._steps[own:]
        for name in dict.fromkeys((*past, *self)):
            parts = (past.column(name)[:kept], self.column(name)[own:])
            both._values[name] = array("d", np.concatenate(parts).tobytes())
        return both

    @property
    def steps(self) -> Int64s:
        return np.array(self._steps, np.int64)

    def column(self, name: str) -> Floats:
        """A figure at every step; all NaN where no step has it."""
        found = self._values.get(name)
        return np.full(len(self), np.nan) if found is None else np.array(found, np.float64)

    def known(self, name: str) -> tuple[Int64s, Floats]:
        values = self.column(name)
        there = ~np.isnan(values)
        return self.steps[there], values[there]

    def under(self, prefix: str) -> list[str]:
        """The ends of the columns' names that start with `prefix/`, such as sources; in order of appearance."""
        return [name.partition("/")[2] for name in self._values if name.startswith(f"{prefix}/")]


def thinned(values: Floats, points: int) -> Int64s:
    """The indices that stay, in order: all where there are at most `points`, else about that many, ends included."""
    if len(values) <= points:
        return np.arange(len(values))
    buckets = max(1, points // 2)
    width = -(-len(values) // buckets)
    filled = np.pad(values, (0, -len(values) % width), mode="edge").reshape(-1, width)
    first = np.arange(len(filled)) * width
    # NaN is never the least or the greatest: it must not hide a spike.
    least = first + np.where(np.isnan(filled), np.inf, filled).argmin(axis=1)
    greatest = first + np.where(np.isnan(filled), -np.inf, filled).argmax(axis=1)
    ends = np.array([0, len(values) - 1])
    return np.unique(np.minimum(np.concatenate([least, greatest, ends]), len(values) - 1))


def bucket_edges(length: int, buckets: int) -> Int64s:
    """The first index of each bucket of neighbours; there are at most `buckets`."""
    width = max(1, -(-length // buckets))
    return np.arange(0, length, width)


def bucket_sums(values: Floats, edges: Int64s) -> Floats:
    """The sum of each bucket; NaN counts as 0."""
    return np.add.reduceat(np.nan_to_num(values), edges) if len(values) else np.zeros(0)

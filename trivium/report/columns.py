"""Numbers by step, one column a figure, that grow while a run goes on and are cut where it resumed."""

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
        """Add a step; a step that is there already, and all behind it, give way to it."""
        if self._steps and self._steps[-1] >= step:
            self.cut(step - 1)
        for name in figures.keys() - self._values.keys():
            self._values[name] = array("d", [math.nan]) * len(self)
        self._steps.append(step)
        for name, column in self._values.items():
            column.append(figures.get(name, math.nan))

    def cut(self, last: int) -> None:
        """Forget every step behind this one."""
        kept = int(np.searchsorted(self.steps, last, side="right"))
        del self._steps[kept:]
        for column in self._values.values():
            del column[kept:]

    def after(self, past: "Columns", last: int) -> "Columns":
        """These steps behind another's up to `last`, as columns of their own."""
        both = Columns()
        kept, own = (int(np.searchsorted(each.steps, last, side="right")) for each in (past, self))
        both._steps = past._steps[:kept] + self._steps[own:]
        for name in dict.fromkeys((*past, *self)):
            parts = (past.column(name)[:kept], self.column(name)[own:])
            both._values[name] = array("d", np.concatenate(parts).tobytes())
        return both

    @property
    def steps(self) -> Int64s:
        """All steps."""
        return np.array(self._steps, np.int64)

    def column(self, name: str) -> Floats:
        """A figure at every step; all NaN where no step has it."""
        found = self._values.get(name)
        return np.full(len(self), np.nan) if found is None else np.array(found, np.float64)

    def known(self, name: str) -> tuple[Int64s, Floats]:
        """A figure, and the steps that have it."""
        values = self.column(name)
        there = ~np.isnan(values)
        return self.steps[there], values[there]

    def under(self, prefix: str) -> list[str]:
        """What stands behind `prefix/` in the names of columns, such as sources; in order of appearance."""
        return [name.partition("/")[2] for name in self._values if name.startswith(f"{prefix}/")]

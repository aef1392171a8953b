"""Rows -> the slots that each rank of a context group has; NumPy alone.

A row is cut into twice as many stretches as there are ranks, and rank r has the r-th from either end:

    ranks     0 0 1 1 2 2 2 2 1 1 0 0       three ranks, a row of twelve slots

A slot sees those before it, so that a first stretch has little to do and a last one much: every rank has as much as
any other. Rows that cannot be cut evenly are padded at their end, which counts for nothing.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trivium.rows.batch import IGNORED, PADDING, Batch


@dataclass(frozen=True, slots=True)
class SlotShare:
    """One rank's slots of rows of one length."""

    rank: int
    ranks: int
    seq_len: int

    @property
    def stretch(self) -> int:
        """Slots in a stretch."""
        return -(-self.seq_len // (2 * self.ranks))

    @property
    def slots(self) -> int:
        """Slots that a rank has of a row."""
        return 2 * self.stretch

    @property
    def padded_len(self) -> int:
        """Slots of all ranks."""
        return self.ranks * self.slots

    @property
    def firsts(self) -> tuple[int, int]:
        """The slots at which the rank's stretches begin."""
        return self.rank * self.stretch, (2 * self.ranks - 1 - self.rank) * self.stretch

    def of(self, array: NDArray[Any], filler: int = 0) -> NDArray[Any]:
        """The rank's slots of an array (B, seq_len)."""
        own = np.full((len(array), self.slots), filler, array.dtype)
        for number, first in enumerate(self.firsts):
            there = array[:, first : first + self.stretch]
            begin = number * self.stretch
            own[:, begin : begin + there.shape[1]] = there
        return own

    def of_batch(self, batch: Batch) -> Batch:
        """The rank's slots of all rows."""
        return Batch(
            self.of(batch.tokens),
            self.of(batch.targets, IGNORED),
            self.of(batch.segments, PADDING),
            self.of(batch.positions),
            batch.source,
            batch.sources,
        )

    def padded(self, segments: NDArray[np.int32]) -> NDArray[np.int32]:
        """Segments of whole rows, with padding up to what the ranks can share evenly."""
        missing = self.padded_len - self.seq_len
        return np.pad(segments, ((0, 0), (0, missing)), constant_values=PADDING) if missing else segments

    def crosses(self, segments: NDArray[np.int32]) -> bool:
        """Whether any document has slots of two ranks; of whole rows' segments all ranks find the same."""
        ends = np.array([end for end in self._ends() if end < self.seq_len], np.int64)
        here = segments[:, ends]
        return bool(((here == segments[:, ends - 1]) & (here != PADDING)).any())

    def _ends(self) -> Iterator[int]:
        """Where the slots of one rank end and those of another begin: not in the middle, where both are the last's."""
        return (number * self.stretch for number in range(1, 2 * self.ranks) if number != self.ranks)

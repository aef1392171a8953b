"""The figures of a reading's windows, made once and kept: position -> window without packing anything.

Kept too are the figures up to single positions, where stages begin and end: a plan that was made before needs no
window at all. The file carries a hash of its content; one that does not fit is as good as none.
"""

from pathlib import Path

import numpy as np
import xxhash
from numpy.typing import NDArray

from trivium.files import keep_in_cache
from trivium.rows.figures import COLUMNS, CONSUMED, ROWS

Int64s = NDArray[np.int64]
HASH_BYTES = 16


class WindowTable:
    """`sums[w]` are the figures of all windows before window w."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.sums: Int64s = np.zeros((1, COLUMNS), np.int64)
        self._marks: dict[int, Int64s] = {}
        self._read()

    @property
    def num_windows(self) -> int:
        """Windows that the table reaches."""
        return len(self.sums) - 1

    def rows_of(self, number: int) -> int:
        """Rows of one window."""
        return int(self.sums[number + 1, ROWS] - self.sums[number, ROWS])

    def find(self, position: int) -> tuple[int, int]:
        """The window of a position that the table reaches, and the row within it."""
        number = int(np.searchsorted(self.sums[:, ROWS], position, side="right")) - 1
        return number, position - int(self.sums[number, ROWS])

    def extend(self, figures: list[Int64s]) -> None:
        """Add the figures of the next windows, and keep the table."""
        self.sums = np.concatenate((self.sums, self.sums[-1] + np.cumsum(np.stack(figures), axis=0)))
        self._keep()

    def marked(self, position: int) -> Int64s | None:
        """The figures of all rows before a position, where that was marked."""
        return self._marks.get(position)

    def find_marked(self, consumed: int) -> int | None:
        """The first position before which this many tokens are consumed, where it and the one before are marked."""
        for position, figures in self._marks.items():
            before = self._marks.get(position - 1)
            if before is not None and before[CONSUMED] < consumed <= figures[CONSUMED]:
                return position
        return None

    def mark(self, position: int, figures: Int64s) -> None:
        """Keep the figures of all rows before a position."""
        self._marks[position] = figures
        self._keep()

    def _read(self) -> None:
        try:
            content = self._path.read_bytes()
        except OSError:
            return
        body = content[HASH_BYTES:]
        if xxhash.xxh3_128_digest(body) != content[:HASH_BYTES] or len(body) % 8:
            return
        numbers = np.frombuffer(body, np.int64)
        rows = int(numbers[0])
        sums, marks = numbers[1 : 1 + rows * COLUMNS], numbers[1 + rows * COLUMNS :]
        self.sums = sums.reshape(rows, COLUMNS)
        self._marks = {int(mark[0]): mark[1:] for mark in marks.reshape(-1, 1 + COLUMNS)}

    def content(self) -> bytes:
        """The table as it is kept."""
        marks = [np.concatenate(([position], figures)) for position, figures in self._marks.items()]
        parts = [np.array([len(self.sums)]), self.sums.reshape(-1), *marks]
        body = np.concatenate(parts).astype(np.int64).tobytes()
        return xxhash.xxh3_128_digest(body) + body

    def _keep(self) -> None:
        # Not flushed: a power cut costs the table, which its hash will tell, and not what it was made from.
        keep_in_cache(self._path, self.content(), durable=False)

"""The loss of every row of a run's last steps: two files of fixed bounds, four bytes a row.

    rows/recent.bin     the newest steps, appended one by one
    rows/before.bin     those before them

After `KEPT_STEPS` steps `recent` takes the name of `before`, so that the last `KEPT_STEPS` are always there, and twice
as many at the most. A step is a header (rows, step, check sum) and its losses in the order of its rows; what a kill has
truncated has no right check sum, and ends the file for every reader. A launch that resumes at a step first cuts off
what another one has written of that step and of later ones. It is a figure of the run: nothing decides by it, it is
not flushed, and a disk that is full costs it and not the run.
"""

import os
import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from trivium.config.stages import MOST_ROWS

KEPT_STEPS = 1000
RECENT, BEFORE = "rows/recent.bin", "rows/before.bin"
MAGIC = b"trivium rows 1\n\0"
_HEADER = struct.Struct("<IQI")  # rows, step, crc32 of both and of the losses
_KEYS = struct.Struct("<IQ")

Losses = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class _Entry:
    """A step's place in a file."""

    step: int
    at: int  # its first byte
    losses: Losses


@dataclass(slots=True)
class RowLosses:
    """What one launch appends; of other ranks and of a dry run it has no folder, and keeps nothing."""

    folder: Path | None
    say: Callable[[str], None]
    _file: BinaryIO | None = None
    _steps: int = 0  # in the recent file

    def begin(self, step: int) -> None:
        """A launch begins at this step: losses of it and of later steps are of a launch whose steps were lost."""
        if self.folder is None:
            return
        try:
            (self.folder / RECENT).parent.mkdir(parents=True, exist_ok=True)
            _cut(self.folder / BEFORE, step)
            self._steps = _cut(self.folder / RECENT, step)
            self._open()
        except OSError as failure:
            self._give_up(failure)

    def add(self, step: int, losses: Losses | None) -> None:
        """Keep the losses of a step's rows; says once where they cannot be kept."""
        if self._file is None or self.folder is None or losses is None:
            return
        data = np.ascontiguousarray(losses, "<f4").tobytes()
        keys = len(losses), step
        try:
            if self._steps >= KEPT_STEPS:
                self._file.close()
                os.replace(self.folder / RECENT, self.folder / BEFORE)
                self._steps = 0
                self._open()
            # One call, so that a kill leaves a whole step or the beginning of one.
            self._file.write(_HEADER.pack(*keys, zlib.crc32(data, zlib.crc32(_KEYS.pack(*keys)))) + data)
            self._steps += 1
        except OSError as failure:
            self._give_up(failure)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self) -> None:
        assert self.folder is not None, "asked where rows are kept"
        path = self.folder / RECENT
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115
        if not self._file.tell():
            self._file.write(MAGIC)

    def _give_up(self, failure: OSError) -> None:
        self.close()
        self.say(f"losses of rows are not kept from here on: {failure.strerror or failure}")


def recent_losses(folder: Path, step: int) -> Losses | None:
    """The losses of a step's rows; None where they were not kept, or are too old."""
    for name in (RECENT, BEFORE):
        found = [entry.losses for entry in _entries(folder / name) if entry.step == step]
        if found:
            return found[-1]
    return None


def _entries(path: Path) -> Iterator[_Entry]:
    """The whole entries of a file, in its order; nothing of a file that is not one of these."""
    try:
        content = path.read_bytes()
    except OSError:
        return
    at = len(MAGIC)
    if content[:at] != MAGIC:
        return
    while at + _HEADER.size <= len(content):
        rows, step, check = _HEADER.unpack_from(content, at)
        stop = at + _HEADER.size + 4 * rows
        data = content[at + _HEADER.size : stop]
        if rows > MOST_ROWS or zlib.crc32(data, zlib.crc32(_KEYS.pack(rows, step))) != check:
            return
        yield _Entry(step, at, np.frombuffer(data, "<f4").astype(np.float32))
        at = stop


def _cut(path: Path, step: int) -> int:
    """Cut a file before its first entry of this step or a later one, and what is not whole; the entries that stay."""
    if not path.exists():
        return 0
    end, kept = 0, 0
    for entry in _entries(path):
        if entry.step >= step:
            break
        end, kept = entry.at + _HEADER.size + 4 * len(entry.losses), kept + 1
    if not kept:
        path.unlink()
    else:
        os.truncate(path, end)
    return kept

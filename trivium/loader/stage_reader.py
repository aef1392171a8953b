"""Steps of a stage -> rows, found but not yet gathered: one way for files, another for streams, one kernel for both.

A source gives rows by position. Whoever gives them brings some at a time, side by side, with the addresses of
what they are made of; the kernel finds each row among those at hand.
"""

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from trivium.errors import PlanError, Problem, SourceError, StoppedError, TriviumError
from trivium.loader.streams import Streams
from trivium.loader.unknown_ids import unknown_in_file
from trivium.plan.stage import CompleteStage, SourceUse
from trivium.rows.batch import Batch
from trivium.rows.blocks import Blocks
from trivium.rows.gather import ROW_ADDRESS, ROW_FILES, ROW_PIECES, gather
from trivium.rows.goldfish import NONE, Goldfish
from trivium.rows.kernels import address_of, array_at, compiled
from trivium.rows.piece import PIECE_BYTES
from trivium.rows.reading import Reading
from trivium.rows.window import Window
from trivium.sources.stream.lane import WindowDocuments
from trivium.sources.stream.lanes import LaneRows, Lanes, file_table

Int64s = NDArray[np.int64]

WINDOWS_EACH = 2  # windows of one source that a stage keeps at hand

# What the kernel knows of rows at hand: the positions they cover, and where their arrays are.
SLOT_FIRST, SLOT_END, SLOT_ROW_STARTS, SLOT_PIECES, SLOT_FILES = range(5)


@dataclass(frozen=True, slots=True, eq=False)
class LoadedWindow:
    """Neighbouring rows of one source, and everything that they point into."""

    first: int  # position of the first
    window: Window
    files: Int64s  # (files, 6) as `gather` takes them
    stream: tuple[str, LaneRows] | None = None  # its name, and the documents that `files` has the addresses of

    @property
    def slot(self) -> tuple[int, int, int, int, int]:
        """What the kernel knows of it."""
        arrays = address_of(self.window.row_starts), address_of(self.window.pieces), address_of(self.files)
        return self.first, self.first + self.window.num_rows, *arrays


class RowGiver(Protocol):
    """A source's rows by position."""

    def at(self, position: int, stop: int) -> LoadedWindow:
        """Rows from this position on, at the most to `stop`; or those of a window that has it."""


class FileRows:
    """Rows of token files: any position, at any time."""

    def __init__(self, reading: Reading, vocab: int, *, masks_loss: bool) -> None:
        self.reading = reading
        self._files = OpenFiles(reading.blocks, vocab, masks_loss=masks_loss)

    def at(self, position: int, stop: int) -> LoadedWindow:
        """The window that has this position."""
        number, _ = self.reading.locate(position)
        window = self.reading.window(number)
        return LoadedWindow(self.reading.rows_before(number), window, self._files.table())


class StreamRows:
    """Rows of a stream: forward, as many at a time as are asked for."""

    def __init__(self, lanes: Lanes, vocab: int) -> None:
        self.lanes = lanes
        self.vocab = vocab

    def at(self, position: int, stop: int) -> LoadedWindow:
        """The rows from this position to `stop`."""
        rows = self.lanes.at(position, stop)
        files = file_table(rows.documents, self.vocab)
        return LoadedWindow(rows.first, rows.window, files, (self.lanes.stream.name, rows))


def files_of(blocks: Blocks, vocab: int, *, masks_loss: bool) -> Int64s:
    """A source's files as `gather` takes them; without their loss bytes where all tokens count in the loss."""
    table = blocks.table
    loss = table.loss if masks_loss else np.zeros_like(table.loss)
    known = np.minimum(table.num_ids, vocab)
    return np.stack((table.tokens, table.itemsize, loss, known, table.ends, table.documents), axis=1)


class OpenFiles:
    """The same, made again when files were opened since."""

    def __init__(self, blocks: Blocks, vocab: int, *, masks_loss: bool) -> None:
        self._blocks = blocks
        self._vocab = vocab
        self._masks_loss = masks_loss
        self._made: tuple[int, Int64s] | None = None  # when this many files were open

    def table(self) -> Int64s:
        """For rows that have been found: their files are open."""
        num_opened = self._blocks.num_opened
        if self._made is None or self._made[0] != num_opened:
            self._made = num_opened, files_of(self._blocks, self._vocab, masks_loss=self._masks_loss)
        return self._made[1]


@dataclass(frozen=True, slots=True)
class FoundRows:
    """The rows of some neighbouring steps, found but not yet gathered."""

    first_step: int
    end_step: int
    size: int  # rows of each step
    seq_len: int
    source: NDArray[np.int32]  # (rows,) index into the plan's sources
    rows: Int64s  # (rows, 3) as `gather` takes them
    loaded: tuple[LoadedWindow, ...]  # kept alive: the rows point into them
    goldfish: Goldfish = NONE  # which targets are dropped

    def streamed(self, row: int) -> tuple[WindowDocuments, ...] | None:
        """The documents of a stream that a row points into; None for a row of files."""
        for each in self.loaded:
            if each.stream is not None and address_of(each.files) == self.rows[row, ROW_FILES]:
                return each.stream[1].documents
        return None


class StageReader:
    """Finds the rows of one stage: which source, which window, which pieces."""

    def __init__(
        self, stage: CompleteStage, names: tuple[str, ...], streams: Streams, vocabs: Mapping[str, int]
    ) -> None:
        self.stage = stage
        self.mixture = stage.mixture  # every batch asks for it
        self.goldfish = stage.goldfish
        segments = {name: stage.uses[name].segment for name in self.mixture.names}
        self.givers = [_giver(stage.uses[name], streams.lanes.get(name), vocabs[name]) for name in self.mixture.names]
        number_of = {name: number for number, name in enumerate(names)}
        self._source_index = np.array([number_of[name] for name in self.mixture.names], np.int32)
        starts = streams.starts(stage) | {name: found.start for name, found in segments.items() if found is not None}
        self._starts = np.array([starts.get(name, 0) for name in self.mixture.names], np.int64)
        self._slots = np.zeros((len(self.givers), WINDOWS_EACH, 5), np.int64)  # see _find
        self._next_slot = [0] * len(self.givers)
        self._held: dict[tuple[int, int], LoadedWindow] = {}
        self._loaded: tuple[LoadedWindow, ...] = ()
        self._lock = threading.Lock()

    def end_of_size(self, step: int) -> int:
        """The first step after this one that has another size, or is not the stage's."""
        start, end = self.stage.start, self.stage.end
        until = self.stage.batches.end_of_size(step - start)
        return end if until is None else min(end, start + until)

    def find(self, step: int, num_steps: int, shard: slice) -> FoundRows:
        """The rows of some steps of one size, those of a shard only."""
        batch_size, first_row = self.stage.size_at(step), self.stage.rows_before(step)
        sources, source_rows = self.mixture.deal(first_row, num_steps * batch_size)
        if shard != slice(0, batch_size):
            sources = np.ascontiguousarray(sources.reshape(-1, batch_size)[:, shard]).reshape(-1)
            source_rows = np.ascontiguousarray(source_rows.reshape(-1, batch_size)[:, shard]).reshape(-1)
        rows = np.empty((len(sources), 3), np.int64)
        with self._lock:
            loaded = self._loaded
            done = _find(sources, source_rows, 0, self._starts, self._slots, rows)
            while done < len(rows):
                source = int(sources[done])
                # Of all ranks, for a stream goes through them anyway.
                stop = self._starts[source] + self.mixture.count(first_row + num_steps * batch_size)[source]
                brought = self._bring(source, int(self._starts[source] + source_rows[done]), int(stop))
                loaded = (*loaded, brought)
                done = _find(sources, source_rows, done, self._starts, self._slots, rows)
        return FoundRows(
            step,
            step + num_steps,
            shard.stop - shard.start,
            self.stage.seq_len,
            self._source_index[sources],
            rows,
            loaded,
            self.goldfish,
        )

    def _bring(self, source: int, position: int, stop: int) -> LoadedWindow:
        """Put the rows of a position into one of its source's slots."""
        giver = self.givers[source]
        name = self.mixture.names[source]
        if giver is None:
            raise PlanError([Problem(f"sources.{name}", "is not on disk, so that no row of it can be read.")])
        try:
            brought = giver.at(position, stop)
        except StoppedError:
            raise
        except TriviumError as error:
            raise SourceError(f"source {name}, row {position:,}: {error}") from error
        slot = self._next_slot[source]
        self._next_slot[source] = (slot + 1) % WINDOWS_EACH
        self._slots[source, slot] = brought.slot
        self._held[source, slot] = brought
        self._loaded = tuple(self._held.values())
        return brought


def _giver(use: SourceUse, lanes: Lanes | None, vocab: int) -> RowGiver | None:
    if lanes is not None:
        return StreamRows(lanes, vocab)
    return None if use.segment is None else FileRows(use.segment.reading, vocab, masks_loss=use.masks_loss)


@compiled
def _find(
    sources: NDArray[np.int32],
    source_rows: Int64s,
    done: int,
    starts: Int64s,
    slots: Int64s,
    rows: Int64s,
) -> int:
    """Find rows from `done` on; stops at the first whose window is not at hand."""
    for row in range(done, sources.size):
        source = sources[row]
        position = starts[source] + source_rows[row]
        found = False
        for slot in range(slots.shape[1]):
            if slots[source, slot, SLOT_FIRST] <= position < slots[source, slot, SLOT_END]:
                within = position - slots[source, slot, SLOT_FIRST]
                row_starts = array_at(slots[source, slot, SLOT_ROW_STARTS], (within + 2,), np.int64)
                rows[row, ROW_ADDRESS] = slots[source, slot, SLOT_PIECES] + row_starts[within] * PIECE_BYTES
                rows[row, ROW_PIECES] = row_starts[within + 1] - row_starts[within]
                rows[row, ROW_FILES] = slots[source, slot, SLOT_FILES]
                found = True
                break
        if not found:
            return row
    return sources.size


class RowReader:
    """Rows of one reading by position, for validation: no mixture and no steps."""

    def __init__(
        self, source: str, reading: Reading, sources: tuple[str, ...], vocab: int, *, masks_loss: bool = True
    ) -> None:
        self.reading = reading
        self.sources = sources
        self.vocab = vocab
        self._source = sources.index(source)
        self._files = OpenFiles(reading.blocks, vocab, masks_loss=masks_loss)

    def batch(self, first: int, count: int) -> Batch:
        """The rows from a position on."""
        rows = np.empty((count, 3), np.int64)
        windows = []
        for index in range(count):
            number, within = self.reading.locate(first + index)
            window = self.reading.window(number)
            windows.append(window)  # kept alive: the row points into it
            pieces = window.row_pieces(within)
            rows[index] = address_of(pieces), len(pieces), 0
        files = self._files.table()
        rows[:, ROW_FILES] = address_of(files)
        arrays = np.empty((4, count, self.reading.settings.seq_len), np.int32)
        row, file, offset = gather(rows, arrays, *NONE.rule)  # no token of a validation is dropped
        if row >= 0:
            raise unknown_in_file(self.sources[self._source], self.reading.blocks, file, offset, self.vocab)
        source = np.full(count, self._source, np.int32)
        return Batch(arrays[0], arrays[1], arrays[2], arrays[3], source, self.sources)

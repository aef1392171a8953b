"""The lanes of a stream, taken in turn: position -> row, forward only, and a small state for each position.

Row after row comes from the next lane that has any left in this epoch; when all have ended, the stream starts
over. So every document is read once before any is read again, however uneven the lanes are. The order depends
on the dataset and the settings of the stages alone: every rank goes through all lanes and takes its own rows.

The state of a lane is a position and a few counts, under 200 bytes of JSON, and 40 more for each change of row
length, packing or seed within its window; it does not grow with the run.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trivium.errors import ResumeError, SourceError
from trivium.rows.kernels import address_of
from trivium.rows.piece import make_pieces, with_file
from trivium.rows.reading import RowSettings
from trivium.rows.window import Window
from trivium.sources.stream.dataset import StreamDataset
from trivium.sources.stream.lane import Lane, LaneRow, LaneState, WindowDocuments

Int64s = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Stretch:
    """Rows of a stream from a position on are made under these settings."""

    start: int
    settings: RowSettings


@dataclass(frozen=True, slots=True)
class LanesState:
    """Where a stream is: everything that decides its next rows."""

    position: int
    epoch: int
    turn: int  # the lane that is asked next
    lanes: tuple[LaneState, ...]

    def plain(self, num_files: int) -> dict[str, Any]:
        """For JSON; the number of files goes along, for a lane's part depends on it."""
        lanes = [lane.plain() for lane in self.lanes]
        return {
            "position": self.position,
            "epoch": self.epoch,
            "turn": self.turn,
            "files": num_files,
            "lanes": lanes,
        }

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> "LanesState":
        """What `plain` gave."""
        lanes = tuple(LaneState.from_plain(lane) for lane in plain["lanes"])
        return cls(int(plain["position"]), int(plain["epoch"]), int(plain["turn"]), lanes)


@dataclass(frozen=True, slots=True, eq=False)
class LaneRows:
    """Neighbouring rows of a stream, as a window whose files are the lanes' documents."""

    first: int  # position of the first row
    window: Window
    documents: tuple[WindowDocuments, ...]  # by the number of the file in a piece
    epochs: tuple[int, ...]  # of each row


class Lanes:
    """All lanes of a stream, and where they are."""

    def __init__(
        self, stream: StreamDataset, stretches: Sequence[Stretch], log: Callable[[str], None], keep_rows: int = 1024
    ) -> None:
        self.stream = stream
        self.keep_rows = keep_rows  # how many rows back `at` can go
        self._stretches = tuple(stretches)
        self._log = log
        self._notes: SimpleQueue[str] = SimpleQueue()
        count = stream.source.lanes
        self._lanes = [Lane(stream, number, self._notes.put, self._log_notes) for number in range(count)]
        self._epoch = self._turn = 0
        # The states at the positions from the first that is kept to where the lanes are.
        self._states = deque([LanesState(0, 0, 0, (LaneState(),) * count)])

    @property
    def position(self) -> int:
        """The position of the next row."""
        return self._states[-1].position

    @property
    def first_kept(self) -> int:
        """The first position that can be gone back to."""
        return self._states[0].position

    def at(self, position: int, stop: int) -> LaneRows:
        """The rows from one position to another; rows up to the first are read and skipped."""
        self._go_to(position)
        taken, epochs = [], []
        while self.position < stop:
            taken.append(self._take())
            epochs.append(self._epoch)
        return _side_by_side(position, self._settings(position).seq_len, taken, tuple(epochs))

    def state_at(self, position: int) -> dict[str, Any]:
        """The state before the row of a position, as plain values."""
        while self.position < position:
            self._take()
        if position < self.first_kept:
            raise self._too_far_back(position)
        return self._states[position - self.first_kept].plain(self.stream.num_files)

    def load(self, plain: dict[str, Any]) -> None:
        """Resume from a state."""
        name, lanes = self.stream.name, self._lanes
        try:
            state, files = LanesState.from_plain(plain), int(plain["files"])
        except (KeyError, TypeError, ValueError):
            raise ResumeError(f"the state of stream {name} is damaged. Give what state_dict returned.") from None
        if len(state.lanes) != len(lanes):
            what = f"stream {name} had {len(state.lanes)} lanes, has {len(lanes)}. Put sources.{name}.lanes back."
            raise ResumeError(what)
        if state.position and files != self.stream.num_files:
            where = self.stream.source.where
            what = f"stream {name}: {where} had {files:,} files, has {self.stream.num_files:,}"
            raise ResumeError(f"{what}. What a lane reads depends on it: put the files back.")
        self._move_to(state)

    def jump(self, position: int) -> None:
        """Call the next row that of another position: for a rehearsal, where any rows will do."""
        last = self._states[-1]
        self._states = deque([LanesState(position, last.epoch, last.turn, last.lanes)])

    def close(self) -> None:
        """Let all threads end."""
        for lane in self._lanes:
            lane.close()

    def _go_to(self, position: int) -> None:
        if position < self.first_kept:
            raise self._too_far_back(position)
        if position < self.position:
            self._move_to(self._states[position - self.first_kept])
        while self.position < position:
            self._take()

    def _too_far_back(self, position: int) -> SourceError:
        return SourceError(
            f"a stream is read forward: it is at row {self.position:,} and can go back to row "
            f"{self.first_kept:,}, not to {position:,}. Load a state of that step, or start with a new loader."
        )

    def _move_to(self, state: LanesState) -> None:
        self._epoch, self._turn = state.epoch, state.turn
        for lane, lane_state in zip(self._lanes, state.lanes, strict=True):
            lane.move_to(state.epoch, lane_state)
        while self._states and self._states[-1].position >= state.position:
            self._states.pop()
        if self._states and self._states[-1].position != state.position - 1:
            self._states.clear()
        self._states.append(state)

    def _settings(self, position: int) -> RowSettings:
        number = bisect_right(self._stretches, position, key=lambda stretch: stretch.start) - 1
        return self._stretches[number].settings

    def _take(self) -> LaneRow:
        """The next row, from the next lane in turn that has any left."""
        position = self.position
        settings = self._settings(position)
        while True:
            for lane in self._lanes:
                lane.start()  # all at once, so that they are waited for together
            for _ in self._lanes:
                lane = self._lanes[self._turn]
                self._turn = (self._turn + 1) % len(self._lanes)
                row = lane.take(settings)
                if row is not None:
                    states = tuple(lane.state for lane in self._lanes)
                    self._states.append(LanesState(position + 1, self._epoch, self._turn, states))
                    if len(self._states) > self.keep_rows + 1:
                        self._states.popleft()
                    self._log_notes()
                    return row
            self._start_over()

    def _start_over(self) -> None:
        """Every lane has ended: the next epoch."""
        if not any(lane.state.window for lane in self._lanes):
            where = self.stream.source.where
            raise SourceError(f"{where} holds no document with any text, in no lane. Name another split or column.")
        self._epoch, self._turn = self._epoch + 1, 0
        for lane in self._lanes:
            lane.move_to(self._epoch, LaneState())
        self._notes.put(f"all lanes have ended: starts over, epoch {self._epoch + 1}")

    def _log_notes(self) -> None:
        """Log what threads noted, in the thread that reads."""
        while True:
            try:
                self._log(f"stream {self.stream.name}: {self._notes.get_nowait()}")
            except Empty:
                return


def _side_by_side(first: int, seq_len: int, taken: list[LaneRow], epochs: tuple[int, ...]) -> LaneRows:
    """Rows of several lanes as one window: each lane's documents are a file of it."""
    number_of: dict[int, int] = {}
    documents: list[WindowDocuments] = []
    pieces = []
    for row in taken:
        key = id(row.documents)
        if key not in number_of:
            number_of[key] = len(documents)
            documents.append(row.documents)
        offsets, words = row.pieces.T
        pieces.append(make_pieces(offsets, with_file(words, number_of[key])))
    row_starts = np.cumsum([0, *map(len, pieces)], dtype=np.int64)
    window = Window(seq_len, row_starts, np.concatenate(pieces), np.zeros(len(taken), np.int32))
    return LaneRows(first, window, tuple(documents), epochs)


def file_table(documents: Sequence[WindowDocuments], vocab: int) -> Int64s:
    """Where the tokens are, as the gather reads it: address, bytes of a token, no loss bytes, known ids, documents."""
    rows = [
        [address_of(each.tokens), each.tokens.itemsize, 0, vocab, address_of(each.ends), len(each.ends)]
        for each in documents
    ]
    return np.array(rows, np.int64)

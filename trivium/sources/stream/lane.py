"""One lane of a stream: windows of documents, one after the other, each packed into rows.

A window ends after `shuffle_buffer` documents, or with the document that fills its tokens. Its rows are packed and
shuffled as those of any window; where a stage changes how rows are made, what is left of the window is packed
again. Nothing of the tokens is state: a lane that resumes reads its window again, and skips the rows that
were taken. While a window is read from, the next one is made in a thread.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from queue import Empty
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trivium.errors import SourceError
from trivium.rows.blocks import Spans
from trivium.rows.piece import MAX_LENGTH, make_pieces, pack_word
from trivium.rows.reading import RowSettings
from trivium.rows.window import Window, make_window
from trivium.seeds import derive_key
from trivium.sources.stream.dataset import LOOK_SECONDS, START, LanePart, LanePosition, StreamDataset
from trivium.sources.stream.prefetch import Prefetcher, read_with_retries

Int64s = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class TakenRows:
    """Rows of a window that were taken in a row under the same settings."""

    settings: RowSettings
    rows: int


@dataclass(frozen=True, slots=True)
class LaneState:
    """Where a lane is: at a window, some rows of which were taken."""

    start: LanePosition = START  # where its window begins
    window: int = 0  # within the epoch
    document: int = 0  # those of the lane in the epoch before the window
    taken: tuple[TakenRows, ...] = ()
    ended: bool = False  # nothing of its part is left in this epoch

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "file": self.start.file,
            "example": self.start.example,
            "window": self.window,
            "document": self.document,
            "taken": [[t.settings.seq_len, t.settings.packing, t.settings.seed, t.rows] for t in self.taken],
            "ended": self.ended,
        }

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> "LaneState":
        """What `plain` gave."""
        taken = tuple(TakenRows(RowSettings(int(n), packing, int(s)), int(r)) for n, packing, s, r in plain["taken"])
        start = LanePosition(int(plain["file"]), int(plain["example"]))
        return cls(start, int(plain["window"]), int(plain["document"]), taken, bool(plain["ended"]))


@dataclass(frozen=True, slots=True, eq=False)
class WindowDocuments:
    """The documents of one window, tokenised."""

    lane: int
    window: int
    first: int  # the number of its first document in the lane
    tokens: NDArray[Any]
    ends: Int64s  # of each document
    files: Int64s  # of the dataset, for each document
    examples: Int64s  # and within it
    start: LanePosition
    after: LanePosition

    def document_at(self, offset: int) -> tuple[str, int, int, int]:
        """The document that holds a token: where it comes from, its number in the lane, its first token and its end."""
        number = int(np.searchsorted(self.ends, offset, side="right"))
        upstream = f"file {self.files[number]:,}, example {self.examples[number]:,}"
        start, end = (int(self.ends[number - 1]) if number else 0), int(self.ends[number])
        return f"lane {self.lane}, window {self.window} ({upstream})", self.first + number, start, end

    @property
    def spans(self) -> Spans:
        """Each document as one span."""
        lengths = np.diff(self.ends, prepend=0)
        assert lengths.max() <= MAX_LENGTH, "a document of a stream is read into memory whole"
        return Spans(make_pieces(self.ends - lengths, pack_word(0, lengths, True, False)))


@dataclass(frozen=True, slots=True, eq=False)
class LaneRow:
    """A row, and the documents that its pieces point into."""

    pieces: Int64s
    documents: WindowDocuments


class Lane:
    """A sequential reader of one part of a stream, epoch by epoch."""

    def __init__(
        self, stream: StreamDataset, number: int, note: Callable[[str], None], attend: Callable[[], None]
    ) -> None:
        self.stream = stream
        self.number = number
        self.epoch = 0
        self.state = LaneState()
        self._note = note  # called in threads
        self._attend = attend  # called while a window is waited for
        self._coming: Prefetcher[WindowDocuments] | None = None
        self._documents: WindowDocuments | None = None
        self._of: tuple[int, int] | None = None  # the epoch and window of `_documents`
        self._packed: tuple[object, Window] | None = None

    def move_to(self, epoch: int, state: LaneState) -> None:
        """Resume from a state; a window that is already loaded is kept where the state is at the same one."""
        if (epoch, state.window) != self._of or state.ended:
            self.close()
        self.epoch, self.state = epoch, state

    def close(self) -> None:
        """Let the threads end."""
        if self._coming is not None:
            self._coming.close()
        self._coming = self._documents = self._of = self._packed = None

    def start(self) -> None:
        """Begin to read where nothing is being read yet."""
        if self._coming is None and not self.state.ended:
            self._coming = Prefetcher(self._windows(self.state))

    def take(self, settings: RowSettings) -> LaneRow | None:
        """The next row; None where the lane's part has ended in this epoch."""
        documents = self._loaded()
        if documents is None:
            return None
        state, taken = self.state, self.state.taken
        if not taken or taken[-1].settings != settings:
            taken = (*taken, TakenRows(settings, 0))
        packed = self._pack(documents, taken)
        row = taken[-1].rows
        if row + 1 < packed.num_rows:
            taken = (*taken[:-1], TakenRows(settings, row + 1))
            self.state = LaneState(state.start, state.window, state.document, taken)
        else:
            document = state.document + len(documents.ends)
            self.state = LaneState(documents.after, state.window + 1, document)
        return LaneRow(packed.row_pieces(row), documents)

    def _loaded(self) -> WindowDocuments | None:
        """The documents of the window that the state is at."""
        if self.state.ended:
            return None
        if self._of != (self.epoch, self.state.window):
            self._documents = found = self._next_window()
            assert found is None or found.window == self.state.window, "windows come in order"
            self._of = (self.epoch, self.state.window)
            if self._documents is None:
                self.close()
                self.state = LaneState(self.state.start, self.state.window, self.state.document, ended=True)
        return self._documents

    def _next_window(self) -> WindowDocuments | None:
        self.start()
        assert self._coming is not None, "a lane that has not ended is read"
        while True:
            try:
                return self._coming.get(timeout=LOOK_SECONDS)
            except StopIteration:
                return None
            except Empty:
                self._attend()
                self.stream.refuse_to_wait()

    def _pack(self, documents: WindowDocuments, taken: tuple[TakenRows, ...]) -> Window:
        """The window under the last settings: of what those before left over."""
        identity = (self.epoch, documents.window, taken[:-1], taken[-1].settings)
        if self._packed is None or self._packed[0] != identity:
            spans = documents.spans
            for number, before in enumerate(taken):
                settings = before.settings
                path = self.stream.name, self.number, self.epoch, documents.window, number
                key = derive_key(settings.seed, "stream", *path, settings.seq_len, settings.packing)
                window = make_window(spans, settings.packing, settings.seq_len, key)
                if number + 1 < len(taken):
                    spans = window.leftover(before.rows)
            self._packed = identity, window
        return self._packed[1]

    def _windows(self, state: LaneState) -> Iterator[WindowDocuments]:
        """Every window of the epoch from a state on; runs in a thread."""
        stream, number, note, epoch = self.stream, self.number, self._note, self.epoch
        return read_windows(stream, number, state, lambda text: note(f"lane {number}, epoch {epoch + 1}: {text}"))


def read_windows(
    stream: StreamDataset, lane: int, state: LaneState, log: Callable[[str], None]
) -> Iterator[WindowDocuments]:
    """Every window of a lane's part from a state on, tokenised."""
    source, part = stream.source, stream.part(lane)
    most_tokens = source.block_tokens * source.window_blocks
    window = _Growing(lane, state.window, state.document, state.start)
    try:
        read = partial(stream.read, part)
        for chunk in read_with_retries(read, state.start, stream.retries, log, stream.refuse_hopeless):
            for tokens, example in zip(stream.encode(chunk.texts), chunk.examples, strict=True):
                window.add(tokens, chunk.file, example)
                if len(window.tokens) >= source.shuffle_buffer or window.num_tokens >= most_tokens:
                    yield window.whole(part)
                    window = window.following()
    except SourceError as error:
        count = window.first + len(window.tokens)
        raise SourceError(f"lane {lane}, after {count:,} documents of it: {error}") from error.__cause__
    if window.tokens:
        yield window.whole(part)


class _Growing:
    """A window that documents are added to."""

    def __init__(self, lane: int, window: int, first: int, start: LanePosition) -> None:
        self.lane, self.window, self.first, self.start = lane, window, first, start
        self.tokens: list[NDArray[Any]] = []
        self.positions: list[LanePosition] = []
        self.num_tokens = 0

    def add(self, tokens: NDArray[Any], file: int, example: int) -> None:
        """Append a document, and where it is in the lane."""
        self.tokens.append(tokens)
        self.positions.append(LanePosition(file, example))
        self.num_tokens += len(tokens)

    @property
    def after(self) -> LanePosition:
        """Behind the last document."""
        return LanePosition(self.positions[-1].file, self.positions[-1].example + 1)

    def following(self) -> "_Growing":
        """The window after this one."""
        return _Growing(self.lane, self.window + 1, self.first + len(self.tokens), self.after)

    def whole(self, part: LanePart) -> WindowDocuments:
        """The documents as arrays."""
        return WindowDocuments(
            self.lane,
            self.window,
            self.first,
            np.concatenate(self.tokens),
            np.cumsum([len(each) for each in self.tokens], dtype=np.int64),
            np.array([part.files[position.file] for position in self.positions], np.int64),
            np.array([position.example for position in self.positions], np.int64),
            self.start,
            self.after,
        )

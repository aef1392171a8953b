"""A window's spans -> its rows, packed and shuffled, as the gather reads them.

A row is a run of pieces, two words each (see `piece`). The rows are in the order in which they are read. A window of
16M tokens takes about a millisecond and half a megabyte.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trivium.rows.blocks import Spans
from trivium.rows.kernels import compiled
from trivium.rows.order import uniform
from trivium.rows.packing import Policy, pack
from trivium.rows.piece import MAX_LENGTH, continues, file_of, is_in_last, length_of, make_pieces, pack_word, part_of

Int64s = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """The rows of one window: row r is the pieces `row_starts[r]` to `row_starts[r + 1]`."""

    seq_len: int  # input slots of a row; with crop a row holds one token more, a target only
    row_starts: Int64s  # (rows + 1)
    pieces: Int64s  # (pieces, 2), two words each, as a span has them
    dropped: NDArray[np.int32]  # (rows) tokens behind the row's last piece that crop dropped

    @property
    def num_rows(self) -> int:
        """Rows of the window."""
        return len(self.dropped)

    @property
    def lengths(self) -> Int64s:
        """Tokens of each piece."""
        return length_of(self.pieces[:, 1])

    @property
    def files(self) -> Int64s:
        """The file of each piece."""
        return file_of(self.pieces[:, 1])

    @property
    def nbytes(self) -> int:
        """Memory that it takes."""
        return self.row_starts.nbytes + self.pieces.nbytes + self.dropped.nbytes

    def row_pieces(self, row: int) -> Int64s:
        """The pieces of a row."""
        return self.pieces[self.row_starts[row] : self.row_starts[row + 1]]

    def leftover(self, first_row: int) -> Spans:
        """The spans that are unread when `first_row` comes next; neighbouring pieces of a document are joined."""
        start = self.row_starts[first_row]
        offsets, words = self.pieces[start:].T
        lengths, continued = length_of(words), continues(words)
        # What crop drops belongs to the row that drops it: a row that is not read has dropped nothing.
        last_pieces = self.row_starts[first_row + 1 :] - 1 - start
        cut = self.dropped[first_row:]
        lengths[last_pieces] += cut
        cropped = last_pieces[cut > 0]
        continued[cropped] = ~is_in_last(words[cropped])
        return _joined(file_of(words), offsets, lengths, continued)


class WindowCache:
    """The windows that were asked for last, up to `max_bytes` of memory."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._windows: OrderedDict[tuple[str, int], Window] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: tuple[str, int], make: Callable[[], Window]) -> Window:
        """A window by its key; made where it is not kept."""
        with self._lock:
            found = self._windows.get(key)
            if found is not None:
                self._windows.move_to_end(key)
                return found
        window = make()  # outside the lock: a window of what was left over asks for another one
        with self._lock:
            if key not in self._windows:
                self._windows[key] = window
                self._bytes += window.nbytes
            while self._bytes > self._max_bytes and len(self._windows) > 1:
                self._bytes -= self._windows.popitem(last=False)[1].nbytes
        return window


def _joined(files: Int64s, offsets: Int64s, lengths: Int64s, continued: NDArray[np.bool_]) -> Spans:
    """Pieces in the order of the files; neighbours within a document become one span."""
    order = np.lexsort((offsets, files))
    files, offsets, lengths, continued = files[order], offsets[order], lengths[order], continued[order]
    touches = (files[1:] == files[:-1]) & (offsets[1:] == offsets[:-1] + lengths[:-1]) & continued[:-1]
    firsts = np.flatnonzero(np.concatenate(([True], ~touches)))
    lasts = np.append(firsts[1:], len(files)) - 1
    whole = offsets[lasts] + lengths[lasts] - offsets[firsts]
    assert whole.max() <= MAX_LENGTH, "a window holds no longer stretch"
    words = pack_word(files[firsts], whole, ~continued[lasts], continued[lasts])
    return Spans(make_pieces(offsets[firsts], words))


def make_window(spans: Spans, policy: Policy, seq_len: int, key: int) -> Window:
    """Pack the spans and put the rows in the order of the key."""
    packing = pack(policy, spans.length, seq_len)
    order = shuffled(packing.num_rows, key)
    packed = packing.row_starts, packing.span, packing.start, packing.length
    row_starts, pieces = _lay(*packed, order, spans.pieces)
    return Window(seq_len, row_starts, pieces, packing.dropped[order])


def shuffled(size: int, key: int) -> Int64s:
    """A keyed random order of `range(size)`."""
    return _shuffle(size, np.uint64(key))


@compiled
def _shuffle(size: int, key: np.uint64) -> Int64s:
    """Fisher and Yates, with a draw for each place."""
    order = np.arange(size)
    for place in range(size - 1, 0, -1):
        # The draw's upper half, scaled to the places there are: no division, and no bias that could be seen.
        other = np.int64(((uniform(key, place) >> np.uint64(32)) * np.uint64(place + 1)) >> np.uint64(32))
        order[place], order[other] = order[other], order[place]
    return order


@compiled
def _lay(
    packed_starts: Int64s,
    span: NDArray[np.int32],
    start: NDArray[np.int32],
    length: NDArray[np.int32],
    order: Int64s,
    spans: Int64s,
) -> tuple[Int64s, Int64s]:
    """Each row's pieces, rows in reading order."""
    row_starts = np.empty(order.size + 1, np.int64)
    pieces = np.empty((span.size, 2), np.int64)
    count = 0
    for row in range(order.size):
        row_starts[row] = count
        for piece in range(packed_starts[order[row]], packed_starts[order[row] + 1]):
            offset, word = spans[span[piece]]
            begin = np.int64(start[piece])
            pieces[count, 0] = offset + begin
            pieces[count, 1] = part_of(word, begin, np.int64(length[piece]))
            count += 1
    row_starts[order.size] = count
    return row_starts, pieces

"""A window's spans -> its rows, packed and shuffled, as the gather reads them.

A row is a run of pieces. A piece is two numbers: where its tokens start in the file, and the file and
length in one word. The rows stand in the order in which they are read. A window of 16M tokens takes about
a millisecond and half a megabyte.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trivium.data.blocks import Spans
from trivium.data.compiled import compiled
from trivium.data.order import uniform
from trivium.data.packing import Policy, pack

Int64s = NDArray[np.int64]

# The second word of a piece: file << 32 | length << 2 | in_last << 1 | goes_on. `goes_on`: the document has a
# next token behind the piece, the target of its last one. `in_last`: its span is the last of its document.
FILE_SHIFT = 32
WORD_MASK = (1 << FILE_SHIFT) - 1
LENGTH_SHIFT = 2
IN_LAST = 2
GOES_ON = 1
LONGEST_ROW = 2**30 - 2


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """The rows of one window: row r is the pieces `row_starts[r]` to `row_starts[r + 1]`."""

    seq_len: int  # input slots of a row; with crop a row holds one token more, a target only
    row_starts: Int64s  # (rows + 1)
    pieces: Int64s  # (pieces, 2): offset, and the word above
    dropped: NDArray[np.int32]  # (rows) tokens behind the row's last piece that crop dropped

    @property
    def num_rows(self) -> int:
        """Rows of the window."""
        return len(self.dropped)

    @property
    def last_goes_on(self) -> NDArray[np.bool_]:
        """For each row, whether the document of its last piece has a next token."""
        last: NDArray[np.bool_] = self.goes_on[self.row_starts[1:] - 1]
        return last

    @property
    def lengths(self) -> Int64s:
        """Tokens of each piece."""
        return (self.pieces[:, 1] & WORD_MASK) >> LENGTH_SHIFT

    @property
    def files(self) -> Int64s:
        """The file of each piece."""
        return self.pieces[:, 1] >> FILE_SHIFT

    @property
    def goes_on(self) -> NDArray[np.bool_]:
        """Whether each piece's document has a next token."""
        flags: NDArray[np.bool_] = self.pieces[:, 1] & GOES_ON != 0
        return flags

    def sum_by_row(self, figures: NDArray[np.generic]) -> Int64s:
        """A figure of each piece, summed for each row."""
        if not self.num_rows:
            return np.zeros(0, np.int64)
        sums: Int64s = np.add.reduceat(figures, self.row_starts[:-1], dtype=np.int64)
        return sums

    def row_pieces(self, row: int) -> Int64s:
        """The pieces of a row."""
        return self.pieces[self.row_starts[row] : self.row_starts[row + 1]]

    def leftover(self, first_row: int) -> Spans:
        """What the rows from `first_row` on have not read yet, as spans, pieces of one document joined again."""
        start = self.row_starts[first_row]
        lengths, goes_on = self.lengths[start:], self.goes_on[start:]
        # What crop drops belongs to the row that drops it: a row that is not read has dropped nothing.
        last_pieces = self.row_starts[first_row + 1 :] - 1 - start
        cut = self.dropped[first_row:]
        lengths[last_pieces] += cut
        in_last = self.pieces[start:, 1] & IN_LAST != 0
        goes_on[last_pieces[cut > 0]] = ~in_last[last_pieces[cut > 0]]
        return _joined(self.files[start:], self.pieces[start:, 0], lengths, goes_on)


def _joined(files: Int64s, offsets: Int64s, lengths: Int64s, goes_on: NDArray[np.bool_]) -> Spans:
    """Pieces in the order of the files; neighbours within a document become one span."""
    order = np.lexsort((offsets, files))
    files, offsets, lengths, goes_on = files[order], offsets[order], lengths[order], goes_on[order]
    touches = (files[1:] == files[:-1]) & (offsets[1:] == offsets[:-1] + lengths[:-1]) & goes_on[:-1]
    firsts = np.flatnonzero(np.concatenate(([True], ~touches)) if len(files) else np.zeros(0, np.bool_))
    lasts = np.append(firsts[1:], len(files)) - 1
    whole = offsets[lasts] + lengths[lasts] - offsets[firsts]
    return Spans(files[firsts].astype(np.int32), offsets[firsts], whole, ~goes_on[lasts])


def make_window(spans: Spans, policy: Policy, seq_len: int, key: int) -> Window:
    """Pack the spans and put the rows in the order of the key."""
    packing = pack(policy, spans.length, seq_len)
    order = shuffled(packing.num_rows, key)
    row_starts, pieces = _lay(packing.row_starts, packing.span, packing.start, packing.length, order, *_columns(spans))
    return Window(seq_len, row_starts, pieces, packing.dropped[order])


def _columns(spans: Spans) -> tuple[NDArray[np.int32], Int64s, Int64s, NDArray[np.bool_]]:
    return spans.file, spans.offset, spans.length, spans.is_last


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
    file: NDArray[np.int32],
    offset: Int64s,
    span_length: Int64s,
    is_last: NDArray[np.bool_],
) -> tuple[Int64s, Int64s]:
    """Each row's pieces, rows in reading order."""
    row_starts = np.empty(order.size + 1, np.int64)
    pieces = np.empty((span.size, 2), np.int64)
    count = 0
    for row in range(order.size):
        row_starts[row] = count
        for piece in range(packed_starts[order[row]], packed_starts[order[row] + 1]):
            of = span[piece]
            ends = is_last[of] and start[piece] + length[piece] == span_length[of]
            word = (np.int64(file[of]) << FILE_SHIFT) | (np.int64(length[piece]) << LENGTH_SHIFT)
            pieces[count, 0] = offset[of] + start[piece]
            pieces[count, 1] = word | (IN_LAST if is_last[of] else 0) | (0 if ends else GOES_ON)
            count += 1
    row_starts[order.size] = count
    return row_starts, pieces

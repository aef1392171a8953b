"""Lengths -> rows: which piece of which span is in which row. The policies.

Nothing is read here. `pack` takes the lengths of a window's spans and gives a `Packing`: for each row
its pieces, each a (span, start, length). Spans of 5, 11, 3 and 2 tokens in rows of 8, where `1+8:3` is
the piece of span 1 that starts at its token 8 and is 3 long:

    concat     0:5 1:3 | 1+3:8 | 2:3 3:2             end to end, cut where a row is full
    bestfit    1:8 | 0:5 1+8:3 | 2:3 3:2             the largest piece that fits comes next
    crop       0:5 2:3 3:1 | 1:9                     whole spans; when none fits, the shortest is cropped
    crop-first 0:5 2:3 1:1 | 3:2                     the same, and the span that came first is cropped
    pad        0:5 | 1:8 | 1+8:3 | 2:3 | 3:2         one span a row

The price, for a window of 16M tokens of web-like documents at 2,048: `concat` cuts a document at nearly
every row; `bestfit` cuts only what is longer than a row, and pads 0.01%; `crop` pads nothing and drops a
sixth of the tokens, `crop-first` a third; `pad` pads 70%. Each takes about a millisecond, and memory for a
few numbers a span, a piece and a slot of a row. The same lengths always give the same rows.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from trivium.rows.kernels import compiled

Policy = Literal["concat", "bestfit", "crop", "crop-first", "pad"]

Int32s: TypeAlias = NDArray[np.int32]
Int64s: TypeAlias = NDArray[np.int64]
Laid: TypeAlias = tuple[Int64s, Int32s, Int32s, Int32s]  # a packing's row_starts, span, start and length

NOTHING = -1


class CropRule(NamedTuple):
    """Among which spans the policies that crop choose, and which span they crop when none fits."""

    buffer_spans: int  # the buffer is filled up to this many before every choice
    refill_spans: int  # they arrive this many at a time
    crops_first: bool  # the span that came first is cropped; else the shortest


# nanochat's loaders of January 2026: the one for documents in pretraining, the one for conversations in midtraining.
CROP_RULES = {"crop": CropRule(1000, 128, False), "crop-first": CropRule(100, 1, True)}

# A start or a dropped tail is at least one token short of its span, so this much still fits in int32.
LONGEST_SPAN = 2**31


@dataclass(frozen=True, slots=True, eq=False)
class Packing:
    """Rows laid from spans: row r is the pieces `row_starts[r]` to `row_starts[r + 1]`, never none."""

    capacity: int  # tokens that a row holds: seq_len, and one more where spans are cropped
    row_starts: Int64s  # (rows + 1) index of each row's first piece
    span: Int32s  # (pieces) the span that it is a piece of
    start: Int32s  # (pieces) where in its span it starts; above 0 it is a continuation
    length: Int32s  # (pieces) its tokens
    dropped: Int32s  # (rows) tokens cropped away: the tail of the span of the row's last piece

    @property
    def num_rows(self) -> int:
        """Rows laid."""
        return len(self.dropped)

    @property
    def tokens(self) -> int:
        """Tokens laid in rows."""
        return int(self.length.sum(dtype=np.int64))


def pack(policy: Policy, lengths: NDArray[np.integer], seq_len: int) -> Packing:
    """Lay spans of these lengths, each at least 1, into rows of `seq_len` tokens (those that crop: one more)."""
    spans = np.require(lengths, np.int64, ("C", "W"))  # a read-only array would need kernels of its own
    assert spans.ndim == 1
    assert len(spans) == 0 or (spans.min() >= 1 and spans.max() <= LONGEST_SPAN)
    assert 1 <= seq_len < LONGEST_SPAN - 1
    match policy:
        case "concat":
            return _lossless(seq_len, _lay_in_order(spans, seq_len, one_span_a_row=False))
        case "bestfit":
            return _lossless(seq_len, _lay_bestfit(spans, seq_len))
        case "crop" | "crop-first":
            return crop(spans, seq_len + 1, CROP_RULES[policy])
        case "pad":
            return _lossless(seq_len, _lay_in_order(spans, seq_len, one_span_a_row=True))


def crop(lengths: Int64s, capacity: int, rule: CropRule) -> Packing:
    """The policies `crop` and `crop-first` with a buffer of any size; `pack` takes nanochat's."""
    # A span that fits in a row waits on the shelf of its length. Longer ones may have any length, and
    # wait behind by rank: capacity 8 and lengths 5, 90, 20, 90 -> shelves 5, 10, 9, 10.
    shelf_of = lengths.copy()
    longer = lengths > capacity
    longer_lengths, rank = np.unique(lengths[longer], return_inverse=True)
    shelf_of[longer] = capacity + 1 + rank
    num_shelves = capacity + 1 + len(longer_lengths)
    row_starts, span, start, length = _lay_crop(lengths, capacity, shelf_of, num_shelves, rule)
    last = row_starts[1:] - 1
    dropped = lengths[span[last]] - length[last]  # a span that was cropped has filled its row
    return Packing(capacity, row_starts, span, start, length, dropped.astype(np.int32))


def _lossless(seq_len: int, laid: Laid) -> Packing:
    """A packing that drops nothing."""
    row_starts, span, start, length = laid
    return Packing(seq_len, row_starts, span, start, length, np.zeros(len(row_starts) - 1, np.int32))


@compiled
def _lay_in_order(lengths: Int64s, seq_len: int, one_span_a_row: bool) -> Laid:
    """The policies `concat` and `pad`: span by span, each where the last one ended or in a new row."""
    most_pieces = len(lengths) + lengths.sum() // seq_len  # a row's end cuts one span at most
    row_starts = np.empty(most_pieces + 1, np.int64)
    span = np.empty(most_pieces, np.int32)
    start = np.empty(most_pieces, np.int32)
    length = np.empty(most_pieces, np.int32)
    row = piece = space = 0

    for chosen in range(len(lengths)):
        left = lengths[chosen]
        while left > 0:
            if space == 0:
                row_starts[row] = piece
                row += 1
                space = seq_len
            laid = min(left, space)
            span[piece], start[piece], length[piece] = chosen, lengths[chosen] - left, laid
            piece += 1
            left -= laid
            space -= laid
        if one_span_a_row:
            space = 0
    row_starts[row] = piece
    return row_starts[: row + 1].copy(), span[:piece].copy(), start[:piece].copy(), length[:piece].copy()


@compiled
def _lay_bestfit(lengths: Int64s, seq_len: int) -> Laid:
    """The policy `bestfit`: a row begins with the largest piece that is left, and takes it from there."""
    num_pieces = ((lengths + seq_len - 1) // seq_len).sum()
    row_starts = np.empty(num_pieces + 1, np.int64)
    span = np.empty(num_pieces, np.int32)
    start = np.empty(num_pieces, np.int32)
    length = np.empty(num_pieces, np.int32)
    row = piece = 0

    # What fills a row alone is laid at once; what is left of each span waits on the shelf of its length.
    shelves = _empty_shelves(seq_len, len(lengths))
    for chosen in range(len(lengths)):
        left = lengths[chosen]
        while left >= seq_len:
            row_starts[row] = piece
            span[piece], start[piece], length[piece] = chosen, lengths[chosen] - left, seq_len
            row += 1
            piece += 1
            left -= seq_len
        if left > 0:
            _put(shelves, left, chosen)

    while piece < num_pieces:
        row_starts[row] = piece
        space = seq_len
        largest = _largest_up_to(shelves, seq_len - 1)
        while largest != NOTHING:
            chosen = _take(shelves, largest)
            span[piece], start[piece], length[piece] = chosen, lengths[chosen] - largest, largest
            piece += 1
            space -= largest
            largest = _largest_up_to(shelves, min(space, largest))  # none above the last one is left
        row += 1
    row_starts[row] = piece
    return row_starts[: row + 1].copy(), span, start, length


@compiled
def _lay_crop(lengths: Int64s, capacity: int, shelf_of: Int64s, num_shelves: int, rule: CropRule) -> Laid:
    """The policies that crop: the largest span in the buffer that fits; when none does, one cropped to fill the row.

    nanochat's rules to the letter: the buffer is filled up before every choice, and among spans of one
    length the first that came is taken. At the window's end it drains, and the last row may stay open.
    """
    num_spans = len(lengths)  # every span is laid once, as one piece
    row_starts = np.empty(num_spans + 1, np.int64)
    span = np.empty(num_spans, np.int32)
    start = np.zeros(num_spans, np.int32)
    length = np.empty(num_spans, np.int32)
    row = piece = 0

    shelves = _empty_shelves(num_shelves, num_spans)
    is_laid = np.zeros(num_spans, np.bool_)
    arrived = 0  # spans that have come into the buffer; `piece` of them have left it
    first = 0  # no span before it is in the buffer
    while piece < num_spans:
        row_starts[row] = piece
        space = capacity
        while space > 0 and piece < num_spans:
            while arrived - piece < rule.buffer_spans and arrived < num_spans:
                for _ in range(min(rule.refill_spans, num_spans - arrived)):
                    _put(shelves, shelf_of[arrived], arrived)
                    arrived += 1
            shelf = _largest_up_to(shelves, space)
            if shelf == NOTHING and rule.crops_first:
                while is_laid[first]:
                    first += 1
                shelf = shelf_of[first]  # where it is at the head, having come first
            elif shelf == NOTHING:
                shelf = _smallest(shelves)
            chosen = _take(shelves, shelf)
            is_laid[chosen] = True
            laid = min(lengths[chosen], space)
            span[piece], length[piece] = chosen, laid
            piece += 1
            space -= laid
        row += 1
    row_starts[row] = piece
    return row_starts[: row + 1].copy(), span, start, length


class _Shelves(NamedTuple):
    """Spans that wait to be laid, on each shelf a queue, and a tree of marks: which shelves hold any.

    The marks are words of 32 bits. Those from `lowest` on have a bit for each shelf; above them, bit b of
    word w marks that word 32 w + b + 1 has any bit set, up to word 0. With 2,048 shelves the lowest word is
    33, and a span on shelf 70 sets bit 6 of word 35, bit 2 of word 1 and bit 0 of word 0.
    """

    first: Int32s  # (shelves) the span that has waited longest, or NOTHING
    last: Int32s  # (shelves) the span that came last, where any waits
    behind: Int32s  # (spans) the span behind it on the same shelf, or NOTHING
    marks: Int64s  # (words) int64 with 32 bits in use, so that no sign and no overflow is ever met
    lowest: int  # the first word of the lowest level


@compiled
def _empty_shelves(num_shelves: int, num_spans: int) -> _Shelves:
    """Shelves 0 to `num_shelves` - 1, for spans 0 to `num_spans` - 1, none of which waits yet."""
    lowest, level_words = 0, 1
    while 32 * level_words < num_shelves:
        lowest += level_words
        level_words *= 32
    return _Shelves(
        np.full(num_shelves, NOTHING, np.int32),
        np.empty(num_shelves, np.int32),
        np.empty(num_spans, np.int32),
        np.zeros(lowest + (num_shelves + 31) // 32, np.int64),
        lowest,
    )


@compiled
def _put(shelves: _Shelves, shelf: int, span: int) -> None:
    """Let a span wait at the end of a shelf's queue."""
    shelves.behind[span] = NOTHING
    if shelves.first[shelf] != NOTHING:
        shelves.behind[shelves.last[shelf]] = span
        shelves.last[shelf] = span
        return
    shelves.first[shelf] = shelves.last[shelf] = span
    word, bit = shelves.lowest + (shelf >> 5), shelf & 31
    while shelves.marks[word] == 0 and word > 0:
        shelves.marks[word] = 1 << bit
        word, bit = (word - 1) >> 5, (word - 1) & 31
    shelves.marks[word] |= 1 << bit


@compiled
def _take(shelves: _Shelves, shelf: int) -> int:
    """Take the span that has waited longest on a shelf that holds any."""
    span: int = shelves.first[shelf]
    shelves.first[shelf] = shelves.behind[span]
    if shelves.behind[span] == NOTHING:
        word, bit = shelves.lowest + (shelf >> 5), shelf & 31
        shelves.marks[word] ^= 1 << bit
        while shelves.marks[word] == 0 and word > 0:
            word, bit = (word - 1) >> 5, (word - 1) & 31
            shelves.marks[word] ^= 1 << bit
    return span


@compiled
def _largest_up_to(shelves: _Shelves, shelf: int) -> int:
    """The last shelf up to this one that holds a span, or NOTHING."""
    word = shelves.lowest + (shelf >> 5)
    found = shelves.marks[word] & ((2 << (shelf & 31)) - 1)
    while found == 0:
        if word == 0:
            return NOTHING
        bit = (word - 1) & 31
        word = (word - 1) >> 5
        found = shelves.marks[word] & ((1 << bit) - 1)
    while word < shelves.lowest:
        word = 32 * word + _highest_bit(found) + 1
        found = shelves.marks[word]
    return 32 * (word - shelves.lowest) + _highest_bit(found)


@compiled
def _smallest(shelves: _Shelves) -> int:
    """The first shelf that holds a span, where one does."""
    word = 0
    found = shelves.marks[word]
    while word < shelves.lowest:
        word = 32 * word + _highest_bit(found & -found) + 1
        found = shelves.marks[word]
    return 32 * (word - shelves.lowest) + _highest_bit(found & -found)


@compiled
def _highest_bit(word: int) -> int:
    """Where the highest bit of a word of 32 bits is: 0b1011 -> 3."""
    bit = 0
    for half in (16, 8, 4, 2, 1):
        if word >> half:
            word >>= half
            bit += half
    return bit

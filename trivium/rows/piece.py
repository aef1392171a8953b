"""A piece in two 64-bit words: the one place that knows their bits.

A piece is a stretch of one document, as a span of a block has it or as a row holds it. An array of pieces is (n, 2):

    word 0   offset: the piece's first token, counted from its file's start
    word 1   63 ...... 32 | 31 ...... 2 |    1    |     0
                 file     |   length    | in last | continues

`in last`: it belongs to the last span of its document. `continues`: its document has a next token, which is the
target of the piece's last one. A file's first 5 tokens, all of one document, are (0, file << 32 | 5 << 2 | 0b10).

The functions take word 1. They are formulas: kernels inline them, and outside of kernels they take a Python int or a
whole NumPy column.
"""

from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from trivium.rows.kernels import formula

Int64s = NDArray[np.int64]
Number = TypeVar("Number", int, Int64s)
Flags: TypeAlias = Any  # bool for a number, NDArray[np.bool_] for a column

_LENGTH_BITS = 30
_LENGTH_SHIFT = 2
_FILE_SHIFT = _LENGTH_SHIFT + _LENGTH_BITS
_FILE_FIELD = -1 << _FILE_SHIFT
_IN_LAST, _CONTINUES = 2, 1

MAX_LENGTH = (1 << _LENGTH_BITS) - 1  # tokens of a piece
PIECE_BYTES = 16
_LENGTH_FIELD = MAX_LENGTH << _LENGTH_SHIFT


@formula
def file_of(word: Number) -> Number:
    """The number of the file in its source."""
    return word >> _FILE_SHIFT


@formula
def length_of(word: Number) -> Number:
    """Tokens of the piece."""
    return (word >> _LENGTH_SHIFT) & MAX_LENGTH


@formula
def is_in_last(word: Number) -> Flags:
    """Whether it belongs to the last span of its document."""
    return word & _IN_LAST != 0


@formula
def continues(word: Number) -> Flags:
    """Whether its document has a next token."""
    return word & _CONTINUES != 0


@formula
def pack_word(file: int | Int64s, length: Number, in_last: Flags, continued: Flags) -> Number:
    """Word 1 of a piece; the length is at most MAX_LENGTH."""
    flags = (in_last * _IN_LAST) | (continued * _CONTINUES)
    word: Number = (file << _FILE_SHIFT) | (length << _LENGTH_SHIFT) | flags
    return word


@formula
def with_file(word: Number, file: int) -> Number:
    """The same piece of another file."""
    return (word & ~_FILE_FIELD) | (file << _FILE_SHIFT)


@formula
def part_of(span: Number, begin: Number, length: Number) -> Number:
    """The word of a span's stretch from its token `begin` on: it continues where it stops before the span does."""
    return (span & ~_LENGTH_FIELD) | (length << _LENGTH_SHIFT) | (begin + length < length_of(span))


def make_pieces(offsets: Int64s, word: Int64s) -> Int64s:
    """(n, 2) pieces of their first words and their second ones."""
    return np.stack((offsets, word), axis=1)

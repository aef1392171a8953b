"""What goes into a piece's two words comes out, in kernels, from columns and from Python ints alike."""

from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from trivium.rows.kernels import compiled
from trivium.rows.piece import (
    MAX_LENGTH,
    PIECE_BYTES,
    continues,
    file_of,
    is_in_last,
    length_of,
    make_pieces,
    pack_word,
    part_of,
    with_file,
)

FILES = st.integers(0, 2**31 - 1)
LENGTHS = st.integers(1, MAX_LENGTH)
FIELDS = st.tuples(FILES, LENGTHS, st.booleans(), st.booleans())


@compiled
def _repacked(words: NDArray[np.int64]) -> NDArray[np.int64]:
    """Each word unpacked and packed again, in a kernel."""
    packed = np.empty(words.size, np.int64)
    for index in range(words.size):
        word = words[index]
        packed[index] = pack_word(file_of(word), length_of(word), is_in_last(word), continues(word))
    return packed


@compiled
def _parts(words: NDArray[np.int64], begins: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    parts = np.empty(words.size, np.int64)
    for index in range(words.size):
        parts[index] = part_of(words[index], begins[index], lengths[index])
    return parts


def columns(rows: Sequence[tuple[int, ...]]) -> tuple[NDArray[np.int64], ...]:
    return tuple(np.array(column, np.int64) for column in zip(*rows, strict=True))


def test_the_bits_are_where_the_layout_draws_them() -> None:
    assert pack_word(0, 5, True, False) == 0b101_10
    assert pack_word(3, 5, False, True) == 3 * 2**32 + 0b101_01
    assert pack_word(0, MAX_LENGTH, True, True) == 2**32 - 1
    pieces = make_pieces(np.array([7]), np.array([pack_word(3, 5, False, True)]))
    assert pieces.tolist() == [[7, 3 * 2**32 + 21]]
    assert pieces[0].nbytes == PIECE_BYTES


@given(FIELDS)
def test_an_int_gives_back_what_was_packed(fields: tuple[int, int, bool, bool]) -> None:
    word = pack_word(*fields)
    assert (file_of(word), length_of(word), is_in_last(word), continues(word)) == fields
    assert 0 <= word < 2**63


@given(st.lists(FIELDS, min_size=1))
def test_columns_and_kernels_agree_with_ints(rows: list[tuple[int, int, bool, bool]]) -> None:
    file, length, in_last, continued = columns(rows)
    words = pack_word(file, length, in_last.astype(np.bool_), continued.astype(np.bool_))
    assert words.dtype == np.int64
    assert words.tolist() == [pack_word(*row) for row in rows]
    assert is_in_last(words).dtype == continues(words).dtype == np.bool_
    found = zip(*(each(words).tolist() for each in (file_of, length_of, is_in_last, continues)), strict=True)
    assert list(found) == rows
    assert _repacked(words).tolist() == words.tolist()


@given(st.lists(FIELDS, min_size=1), FILES)
def test_another_file_changes_nothing_else(rows: list[tuple[int, int, bool, bool]], file: int) -> None:
    words = np.array([pack_word(*row) for row in rows])
    assert with_file(words, file).tolist() == [pack_word(file, *row[1:]) for row in rows]


@given(st.data(), FILES, LENGTHS, st.booleans())
def test_a_part_continues_unless_it_ends_where_its_document_does(
    data: st.DataObject, file: int, length: int, is_last: bool
) -> None:
    begin = data.draw(st.integers(0, length - 1))
    stop = data.draw(st.sampled_from([length, data.draw(st.integers(begin + 1, length))]))
    span = pack_word(file, length, is_last, not is_last)
    expected = pack_word(file, stop - begin, is_last, not (is_last and stop == length))
    assert part_of(span, begin, stop - begin) == expected
    assert _parts(*columns([(span, begin, stop - begin)])).tolist() == [expected]

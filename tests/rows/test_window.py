"""A window's rows: each span laid once in the order of the key; what is unread comes back as spans."""

from collections import Counter
from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.support.corpus import make_blocks
from trivium.rows.blocks import FileBlocks, Spans
from trivium.rows.packing import Policy, pack
from trivium.rows.piece import continues, file_of, is_in_last, length_of, pack_word
from trivium.rows.window import Window, WindowCache, make_window, shuffled

FILES = st.lists(st.lists(st.integers(1, 60), min_size=1, max_size=12), min_size=1, max_size=3)
POLICIES = st.sampled_from(["concat", "bestfit", "crop", "crop-first", "pad"])
SEQ_LENS = st.integers(1, 40)
TEN = [3, 5, 2, 9, 4, 1, 7, 6, 3, 8]


def all_spans(blocks: FileBlocks) -> Spans:
    return blocks.spans(np.arange(blocks.num_blocks))


def tokens_of(spans: Spans) -> Counter[tuple[int, int]]:
    """(file, token), which every span has once."""
    found = ((file_of(word), offset, length_of(word)) for offset, word in spans.pieces.tolist())
    return Counter((file, token) for file, offset, length in found for token in range(offset, offset + length))


def tokens_before(window: Window, row: int) -> Counter[tuple[int, int]]:
    """(file, token) of all that the rows before this one read or drop."""
    lengths = window.lengths
    lengths[window.row_starts[1:] - 1] += window.dropped
    until = window.row_starts[row]
    found = zip(window.files[:until], window.pieces[:until, 0], lengths[:until], strict=True)
    return Counter((file, token) for file, offset, length in found for token in range(offset, offset + length))


def shown(window: Window) -> list[list[str]]:
    """`3:5`: the token at which a piece starts, and its length; `+` where its document continues."""
    offsets, words = window.pieces.T.tolist()
    lengths = window.lengths.tolist()
    pieces = [
        f"{offset}:{length}{'+' if continues(word) else ''}"
        for offset, length, word in zip(offsets, lengths, words, strict=True)
    ]
    return [pieces[first:end] for first, end in pairwise(window.row_starts.tolist())]


def test_ten_documents_are_laid_in_rows_of_eight_and_shuffled_by_the_key() -> None:
    spans = all_spans(make_blocks([TEN], block_tokens=64))
    in_order = [
        ["0:3", "3:5"],
        ["8:2", "10:6+"],
        ["16:3", "19:4", "23:1"],
        ["24:7", "31:1+"],
        ["32:5", "37:3"],
        ["40:8"],
    ]
    window = make_window(spans, "concat", 8, key=1)
    assert shown(window) == [in_order[row] for row in shuffled(6, 1)]
    assert shown(make_window(spans, "concat", 8, key=2)) != shown(window)


def test_a_piece_continues_where_its_span_does_and_where_a_row_cuts_it() -> None:
    spans = all_spans(make_blocks([[10]], block_tokens=6))  # spans of 6 and 4 tokens, of one document
    window = make_window(spans, "concat", 5, key=0)
    assert sorted(shown(window)) == [["0:5+"], ["5:1+", "6:4"]]
    order = np.argsort(window.pieces[:, 0])
    assert is_in_last(window.pieces[order, 1]).tolist() == [False, False, True]


@given(FILES, POLICIES, SEQ_LENS, st.integers(0, 2**64 - 1))
def test_rows_are_those_of_the_packing_in_another_order(
    files: list[list[int]], policy: Policy, seq_len: int, key: int
) -> None:
    spans = all_spans(make_blocks(files))
    window, packing = make_window(spans, policy, seq_len, key), pack(policy, spans.length, seq_len)
    order = shuffled(packing.num_rows, key)
    assert np.diff(window.row_starts).tolist() == np.diff(packing.row_starts)[order].tolist()
    assert window.dropped.tolist() == packing.dropped[order].tolist()
    assert tokens_before(window, window.num_rows) == tokens_of(spans)


@given(FILES, POLICIES, SEQ_LENS, st.integers(0, 9), st.data())
def test_read_and_leftover_are_every_token_once(
    files: list[list[int]], policy: Policy, seq_len: int, key: int, data: st.DataObject
) -> None:
    spans = all_spans(make_blocks(files))
    window = make_window(spans, policy, seq_len, key)
    row = data.draw(st.integers(0, window.num_rows - 1))
    assert tokens_before(window, row) + tokens_of(window.leftover(row)) == tokens_of(spans)


@given(FILES, POLICIES, SEQ_LENS)
def test_a_window_of_which_nothing_was_read_leaves_its_documents_whole(
    files: list[list[int]], policy: Policy, seq_len: int
) -> None:
    blocks = make_blocks(files)
    left = make_window(all_spans(blocks), policy, seq_len, 0).leftover(0)
    assert left.length.tolist() == [length for lengths in files for length in lengths]
    assert is_in_last(left.pieces[:, 1]).all()


def test_what_is_left_of_a_document_in_the_middle_continues() -> None:
    spans = all_spans(make_blocks([[12]], block_tokens=64))
    window = next(w for w in (make_window(spans, "concat", 4, key) for key in range(99)) if w.pieces[0, 0] == 8)
    left = window.leftover(1)  # its end was read first
    assert left.pieces.tolist() == [[0, pack_word(0, 8, False, True)]]


@given(st.integers(0, 300), st.integers(0, 2**64 - 1))
def test_a_shuffle_has_every_row_once(size: int, key: int) -> None:
    assert sorted(shuffled(size, key).tolist()) == list(range(size))


def test_the_shuffle_is_pinned() -> None:
    """Golden: another order would change every run that is resumed."""
    assert shuffled(10, 1234).tolist() == [4, 8, 9, 0, 7, 3, 2, 1, 6, 5]


def test_a_cache_keeps_the_windows_asked_for_last_up_to_its_bytes() -> None:
    windows = [make_window(all_spans(make_blocks([TEN])), "concat", 8, key) for key in range(3)]
    cache, made = WindowCache(2 * windows[0].nbytes), []

    def get(number: int) -> Window:
        def make() -> Window:
            made.append(number)
            return windows[number]

        return cache.get(("web", number), make)

    for number in (0, 1, 0, 2, 0, 1):
        assert get(number) is windows[number]
    assert made == [0, 1, 2, 1], "window 1 was the one that had waited longest"


def test_a_window_larger_than_the_cache_is_kept_alone() -> None:
    window = make_window(all_spans(make_blocks([TEN])), "concat", 8, 0)
    cache, made = WindowCache(1), []
    for _ in range(3):
        cache.get(("web", 0), lambda: made.append(1) or window)  # type: ignore[func-returns-value]
    assert made == [1]

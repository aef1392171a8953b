"""What `pack` promises of every policy, and each policy against the plainest code that follows its rule."""

from collections.abc import Sequence
from itertools import pairwise
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from trivium.config.stages import CROPPING
from trivium.config.stages import Packing as PackingKey
from trivium.rows.packing import CROP_RULES, LONGEST_SPAN, CropRule, Packing, Policy, crop, pack

POLICIES: tuple[Policy, ...] = get_args(Policy)
CROPS: tuple[Policy, ...] = ("crop", "crop-first")

TEN = np.array([5, 11, 3, 2, 8, 1, 3, 20, 6, 4])

Piece = tuple[int, int, int]

window_lengths = st.lists(st.integers(1, 40), max_size=60)
seq_lens = st.integers(1, 24)
policies = st.sampled_from(POLICIES)
crops = st.sampled_from(CROPS)


@pytest.fixture(scope="module", autouse=True)
def compiled_kernels() -> None:
    """Compile before any test, or Hypothesis takes the first call's second for a slow example."""
    for policy in POLICIES:
        pack(policy, TEN, 8)


def rows_of(packing: Packing) -> list[list[Piece]]:
    pieces = list(zip(packing.span.tolist(), packing.start.tolist(), packing.length.tolist(), strict=True))
    bounds = packing.row_starts.tolist()
    return [pieces[first:end] for first, end in pairwise(bounds)]


def padding(packing: Packing) -> int:
    return packing.num_rows * packing.capacity - packing.tokens


def dropped_tokens(packing: Packing) -> int:
    return int(packing.dropped.sum(dtype=np.int64))


def splits(packing: Packing) -> int:
    """Spans laid in more than one piece."""
    return len(np.unique(packing.span[packing.start > 0]))


def row_tokens(packing: Packing) -> NDArray[np.int64]:
    return np.array([sum(length for _, _, length in row) for row in rows_of(packing)], np.int64)


def row_padding(packing: Packing) -> NDArray[np.int64]:
    return packing.capacity - row_tokens(packing)


def row_continuations(packing: Packing) -> NDArray[np.int64]:
    """Pieces of each row that continue a span begun elsewhere."""
    return np.array([sum(start > 0 for _, start, _ in row) for row in rows_of(packing)], np.int64)


def shown(packing: Packing) -> str:
    """`0:5 1+8:3 | 2:3`: 5 tokens of span 0 and, from its token 8 on, 3 of span 1; a row of 3 of span 2."""

    def piece(span: int, start: int, length: int) -> str:
        return f"{span}+{start}:{length}" if start else f"{span}:{length}"

    return " | ".join(" ".join(piece(*laid) for laid in row) for row in rows_of(packing))


def web_like_lengths(tokens: int, seed: int = 0) -> NDArray[np.int64]:
    """Lengths of web documents, by and large: half are under 365 tokens, one in sixteen is over 2,048."""
    lengths = np.random.default_rng(seed).lognormal(5.9, 1.1, tokens // 250).astype(np.int64) + 1
    return lengths[: int(np.searchsorted(np.cumsum(lengths), tokens))]


def plain_bestfit(lengths: Sequence[int], seq_len: int) -> list[list[Piece]]:
    waiting = [
        (span, start, min(seq_len, length - start))
        for span, length in enumerate(lengths)
        for start in range(0, length, seq_len)
    ]
    rows = []
    while waiting:
        row, space = [], seq_len
        while fitting := [piece for piece in waiting if piece[2] <= space]:
            largest = max(fitting, key=lambda piece: piece[2])  # of several, the first
            waiting.remove(largest)
            row.append(largest)
            space -= largest[2]
        rows.append(row)
    return rows


def plain_crop(
    lengths: Sequence[int], capacity: int, buffer_spans: int, refill_spans: int, crops_first: bool
) -> tuple[list[list[Piece]], list[int]]:
    """Rows and what each dropped, by the rules as nanochat states them."""
    coming = list(enumerate(lengths))[::-1]
    buffer: list[tuple[int, int]] = []
    rows, dropped = [], []
    while coming or buffer:
        row, tail, space = [], 0, capacity
        while space and (coming or buffer):
            while coming and len(buffer) < buffer_spans:
                buffer += coming[-refill_spans:][::-1]
                del coming[-refill_spans:]
            fitting = [document for document in buffer if document[1] <= space]
            if fitting:
                chosen = max(fitting, key=lambda document: document[1])  # of several, the first
            else:
                chosen = buffer[0] if crops_first else min(buffer, key=lambda document: document[1])
            buffer.remove(chosen)
            laid = min(chosen[1], space)
            row.append((chosen[0], 0, laid))
            tail = chosen[1] - laid
            space -= laid
        rows.append(row)
        dropped.append(tail)
    return rows, dropped


@pytest.mark.parametrize(
    ("policy", "rows"),
    [
        ("concat", "0:5 1:3 | 1+3:8 | 2:3 3:2"),
        ("bestfit", "1:8 | 0:5 1+8:3 | 2:3 3:2"),
        ("crop", "0:5 2:3 3:1 | 1:9"),
        ("crop-first", "0:5 2:3 1:1 | 3:2"),
        ("pad", "0:5 | 1:8 | 1+8:3 | 2:3 | 3:2"),
    ],
)
def test_the_module_s_own_example_is_laid_as_it_says(policy: Policy, rows: str) -> None:
    assert shown(pack(policy, np.array([5, 11, 3, 2]), 8)) == rows


def test_concat_lays_documents_end_to_end() -> None:
    packing = pack("concat", TEN, 8)
    assert shown(packing) == (
        "0:5 1:3 | 1+3:8 | 2:3 3:2 4:3 | 4+3:5 5:1 6:2 | 6+2:1 7:7 | 7+7:8 | 7+15:5 8:3 | 8+3:3 9:4"
    )
    assert (packing.tokens, padding(packing), splits(packing), dropped_tokens(packing)) == (63, 1, 5, 0)
    assert row_continuations(packing).tolist() == [0, 1, 0, 1, 1, 1, 1, 1]


def test_bestfit_begins_a_row_with_the_largest_piece_and_the_largest_that_fits_comes_next() -> None:
    packing = pack("bestfit", TEN, 8)
    assert shown(packing) == "1:8 | 4:8 | 7:8 | 7+8:8 | 8:6 3:2 | 0:5 1+8:3 | 7+16:4 9:4 | 2:3 6:3 5:1"
    assert (packing.tokens, padding(packing), splits(packing), dropped_tokens(packing)) == (63, 1, 2, 0)
    assert row_padding(packing).tolist() == [0, 0, 0, 0, 0, 0, 0, 1]


def test_crop_fills_rows_of_one_token_more_and_drops_tails() -> None:
    packing = pack("crop", TEN, 8)
    assert shown(packing) == "4:8 5:1 | 8:6 2:3 | 0:5 9:4 | 6:3 3:2 1:4 | 7:9"
    assert packing.dropped.tolist() == [0, 0, 0, 7, 11]
    assert (packing.tokens, padding(packing), splits(packing), dropped_tokens(packing)) == (45, 0, 0, 18)


def test_pad_gives_each_document_rows_of_its_own() -> None:
    packing = pack("pad", TEN, 8)
    assert shown(packing) == ("0:5 | 1:8 | 1+8:3 | 2:3 | 3:2 | 4:8 | 5:1 | 6:3 | 7:8 | 7+8:8 | 7+16:4 | 8:6 | 9:4")
    assert (packing.tokens, padding(packing), splits(packing), dropped_tokens(packing)) == (63, 41, 2, 0)


@given(policies, window_lengths, seq_lens)
def test_every_token_is_laid_once_or_counted_as_dropped(policy: Policy, lengths: list[int], seq_len: int) -> None:
    packing = pack(policy, np.array(lengths, dtype=np.int64), seq_len)
    laid = [
        (span, token)
        for row in rows_of(packing)
        for span, start, length in row
        for token in range(start, start + length)
    ]
    assert len(laid) == len(set(laid)) == packing.tokens
    assert packing.tokens + dropped_tokens(packing) == sum(lengths)
    for row, dropped in zip(rows_of(packing), packing.dropped.tolist(), strict=True):
        span, start, length = row[-1]
        laid += [(span, start + length + token) for token in range(dropped)]
    assert sorted(laid) == [(span, token) for span, length in enumerate(lengths) for token in range(length)]


@given(policies, window_lengths, seq_lens)
def test_no_row_is_empty_or_overfull_and_the_counts_agree_row_by_row(
    policy: Policy, lengths: list[int], seq_len: int
) -> None:
    packing = pack(policy, np.array(lengths, dtype=np.int64), seq_len)
    rows = rows_of(packing)
    assert packing.capacity == (seq_len + 1 if policy in CROPS else seq_len)
    assert len(rows) == packing.num_rows == len(packing.dropped)
    assert all(row and all(length >= 1 for _, _, length in row) for row in rows)
    assert packing.tokens == row_tokens(packing).sum()
    assert row_padding(packing).min(initial=0) >= 0
    pieces_of = np.bincount(packing.span, minlength=len(lengths))
    assert splits(packing) == np.count_nonzero(pieces_of > 1)


@given(window_lengths, seq_lens)
def test_concat_pads_only_the_last_row(lengths: list[int], seq_len: int) -> None:
    packing = pack("concat", np.array(lengths, dtype=np.int64), seq_len)
    assert not row_padding(packing)[:-1].any()
    assert np.all(np.diff(packing.span) >= 0)


@given(window_lengths, seq_lens)
def test_pad_begins_each_row_with_the_next_piece_and_ends_it_there(lengths: list[int], seq_len: int) -> None:
    assert [row for [row] in rows_of(pack("pad", np.array(lengths, dtype=np.int64), seq_len))] == [
        (span, start, min(seq_len, length - start))
        for span, length in enumerate(lengths)
        for start in range(0, length, seq_len)
    ]


@given(window_lengths, seq_lens)
def test_bestfit_is_the_plain_rule_row_for_row(lengths: list[int], seq_len: int) -> None:
    packing = pack("bestfit", np.array(lengths, dtype=np.int64), seq_len)
    assert rows_of(packing) == plain_bestfit(lengths, seq_len)


@given(st.lists(st.integers(1, 3000), max_size=60), st.integers(30, 2100))
def test_bestfit_is_the_plain_rule_in_rows_of_thousands(lengths: list[int], seq_len: int) -> None:
    packing = pack("bestfit", np.array(lengths, dtype=np.int64), seq_len)
    assert rows_of(packing) == plain_bestfit(lengths, seq_len)


@given(window_lengths, seq_lens)
def test_bestfit_cuts_only_what_is_longer_than_a_row(lengths: list[int], seq_len: int) -> None:
    packing = pack("bestfit", np.array(lengths, dtype=np.int64), seq_len)
    assert splits(packing) == sum(length > seq_len for length in lengths)
    assert len(packing.span) == sum(-(-length // seq_len) for length in lengths)


@given(
    st.lists(st.integers(1, 40) | st.integers(1, 5000), max_size=60),
    st.integers(2, 24) | st.integers(2, 2100),
    st.builds(CropRule, st.integers(1, 12), st.integers(1, 5), st.booleans()),
)
def test_cropping_is_the_plain_rule_row_for_row_with_any_buffer(
    lengths: list[int], capacity: int, rule: CropRule
) -> None:
    packing = crop(np.array(lengths, dtype=np.int64), capacity, rule)
    rows, dropped = plain_crop(lengths, capacity, *rule)
    assert rows_of(packing) == rows
    assert packing.dropped.tolist() == dropped


@pytest.mark.parametrize("seed", range(3))
def test_bestfit_and_crops_are_the_plain_rules_in_rows_of_a_million(seed: int) -> None:
    lengths = np.random.default_rng(seed).lognormal(12, 1.5, 300).astype(np.int64) + 1
    assert rows_of(pack("bestfit", lengths, 2**20)) == plain_bestfit(lengths.tolist(), 2**20)
    for policy in CROPS:
        assert rows_of(pack(policy, lengths, 2**20)) == plain_crop(lengths.tolist(), 2**20 + 1, *CROP_RULES[policy])[0]


@pytest.mark.parametrize(("policy", "rule"), [("crop", (1000, 128, False)), ("crop-first", (100, 1, True))])
def test_ten_thousand_rows_are_those_of_nanochat_s_rules(policy: Policy, rule: tuple[int, int, bool]) -> None:
    """Its pretraining's loader and its midtraining's, each with the buffer that it has there."""
    lengths = np.random.default_rng(0).integers(1, 1500, 33_000)
    packing = pack(policy, lengths, 2048)
    rows, dropped = plain_crop(lengths.tolist(), 2049, *rule)
    assert len(rows) > 10_000
    assert rows_of(packing) == rows
    assert packing.dropped.tolist() == dropped


@given(crops, window_lengths, seq_lens)
def test_cropping_pads_only_the_row_in_which_the_window_drains(
    policy: Policy, lengths: list[int], seq_len: int
) -> None:
    packing = pack(policy, np.array(lengths, dtype=np.int64), seq_len)
    assert not row_padding(packing)[:-1].any()
    assert not packing.dropped[row_padding(packing) > 0].any()


@given(crops, window_lengths, seq_lens)
def test_cropping_lays_every_document_once_from_its_start(policy: Policy, lengths: list[int], seq_len: int) -> None:
    packing = pack(policy, np.array(lengths, dtype=np.int64), seq_len)
    assert sorted(packing.span.tolist()) == list(range(len(lengths)))
    assert not packing.start.any()


def test_a_config_names_the_policies_and_those_that_crop() -> None:
    assert set(get_args(PackingKey)) == set(POLICIES)
    assert CROPPING == CROPS == tuple(CROP_RULES)


@pytest.mark.parametrize("seq_len", [2048, 8192])
@pytest.mark.parametrize("seed", range(3))
def test_bestfit_pads_under_a_thousandth_of_a_window_of_web_like_documents(seq_len: int, seed: int) -> None:
    packing = pack("bestfit", web_like_lengths(2**24, seed), seq_len)
    assert padding(packing) < 0.001 * packing.tokens


@pytest.mark.parametrize("policy", POLICIES)
def test_a_window_without_spans_has_no_rows(policy: Policy) -> None:
    packing = pack(policy, np.array([], dtype=np.int64), 8)
    assert rows_of(packing) == []
    assert (packing.num_rows, packing.tokens, padding(packing), splits(packing)) == (0, 0, 0, 0)
    assert (row_tokens(packing).size, row_padding(packing).size, packing.dropped.size) == (0, 0, 0)


@pytest.mark.parametrize(
    ("policy", "rows"),
    [
        ("concat", "0:1 1:1 2:1 3:1 | 4:1 5:1"),
        ("bestfit", "0:1 1:1 2:1 3:1 | 4:1 5:1"),
        ("crop", "0:1 1:1 2:1 3:1 4:1 | 5:1"),
        ("crop-first", "0:1 1:1 2:1 3:1 4:1 | 5:1"),
        ("pad", "0:1 | 1:1 | 2:1 | 3:1 | 4:1 | 5:1"),
    ],
)
def test_documents_of_one_token_are_laid_like_any_other(policy: Policy, rows: str) -> None:
    assert shown(pack(policy, np.ones(6, dtype=np.int64), 4)) == rows


@pytest.mark.parametrize(
    ("policy", "rows", "dropped"),
    [
        ("concat", "0:4 | 0+4:2 1:2 | 1+2:4 | 2:4 | 2+4:2", 0),
        ("bestfit", "0:4 | 1:4 | 2:4 | 0+4:2 1+4:2 | 2+4:2", 0),
        ("crop", "0:5 | 1:5 | 2:5", 3),
        ("crop-first", "0:5 | 1:5 | 2:5", 3),
        ("pad", "0:4 | 0+4:2 | 1:4 | 1+4:2 | 2:4 | 2+4:2", 0),
    ],
)
def test_documents_of_one_length_are_laid_in_order(policy: Policy, rows: str, dropped: int) -> None:
    packing = pack(policy, np.full(3, 6), 4)
    assert shown(packing) == rows
    assert dropped_tokens(packing) == dropped


def test_a_document_of_exactly_a_row_is_not_split() -> None:
    assert shown(pack("bestfit", np.array([8, 16]), 8)) == "0:8 | 1:8 | 1+8:8"
    assert splits(pack("bestfit", np.array([8]), 8)) == 0


@pytest.mark.parametrize("policy", POLICIES)
def test_the_longest_document_meets_no_overflow(policy: Policy) -> None:
    seq_len = 2**20
    packing = pack(policy, np.array([LONGEST_SPAN, 3]), seq_len)
    assert packing.tokens + dropped_tokens(packing) == LONGEST_SPAN + 3
    assert packing.start.min() >= 0
    assert packing.start.max() == (0 if policy in CROPS else LONGEST_SPAN - seq_len)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_read_only_array_of_another_type_is_packed_the_same(policy: Policy) -> None:
    lengths = TEN.astype(np.uint16)
    lengths.flags.writeable = False
    assert shown(pack(policy, lengths, 8)) == shown(pack(policy, TEN, 8))


def test_a_span_without_tokens_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(AssertionError):
        pack("bestfit", np.array([3, 0]), 8)

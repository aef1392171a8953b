"""Goldfish masks: the tokens before a token in its document decide, wherever rows and blocks are cut."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.corpus import document_ends, gather_window, make_blocks
from trivium.rows.batch import IGNORED
from trivium.rows.blocks import FileBlocks
from trivium.rows.goldfish import BASE, Goldfish, drop
from trivium.rows.kernels import address_of
from trivium.rows.order import mixed
from trivium.rows.packing import Policy
from trivium.rows.window import Window, make_window

FILES = st.lists(st.lists(st.integers(1, 60), min_size=1, max_size=8), min_size=1, max_size=3)
POLICIES = st.sampled_from(["concat", "bestfit", "crop", "crop-first", "pad"])
RULES = st.builds(Goldfish, st.integers(2, 5), st.integers(1, 20))


def is_dropped(document: list[int], number: int, rule: Goldfish) -> bool:
    """The rule, by its words: of a document's token, from the h before it."""
    if number < rule.h:
        return False
    hashed = 0
    for token in document[number - rule.h : number]:
        hashed = hashed * int(BASE) + token + 1
    (draw,) = mixed(np.array([hashed % 2**64], np.uint64))
    return bool(draw < rule.rule[0])


def dropped_tokens(files: list[list[int]], rule: Goldfish) -> set[int]:
    """Of a source whose tokens are numbered, those that are never a target."""
    edges = pairwise([0, *document_ends(files).tolist()])
    documents = [list(range(start, end)) for start, end in edges]
    return {token for each in documents for number, token in enumerate(each) if is_dropped(each, number, rule)}


def window_of(blocks: FileBlocks, policy: Policy, seq_len: int) -> Window:
    return make_window(blocks.spans(np.arange(blocks.num_blocks)), policy, seq_len, key=0)


@given(FILES, POLICIES, st.integers(1, 40), st.booleans(), RULES, st.sampled_from([7, 16, 64]))
def test_the_same_tokens_are_dropped_however_rows_and_blocks_are_cut(
    files: list[list[int]], policy: Policy, seq_len: int, loss: bool, rule: Goldfish, block_tokens: int
) -> None:
    blocks = make_blocks(files, block_tokens, loss=loss)
    window = window_of(blocks, policy, seq_len)
    (tokens, plain, *places), (same, masked, *same_places) = (
        gather_window(blocks, window),
        gather_window(blocks, window, rule),
    )
    assert np.array_equal(tokens, same)
    assert np.array_equal(places, same_places)
    expected = np.where(np.isin(plain, list(dropped_tokens(files, rule))), IGNORED, plain)
    assert masked.tolist() == expected.tolist()


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", "int64"])
def test_tokens_of_any_width_have_the_same_mask(dtype: str) -> None:
    blocks, rule = make_blocks([[3, 8, 2, 30], [17, 5]]), Goldfish(3, 4)
    window = window_of(blocks, "bestfit", 12)
    expected = gather_window(blocks, window, rule).tolist()
    copies = [file.open().tokens.astype(dtype) for file in blocks.files]
    addresses = np.array([address_of(copy) for copy in copies])
    blocks.table = replace(blocks.table, tokens=addresses, itemsize=np.full(2, copies[0].itemsize))
    assert gather_window(blocks, window, rule).tolist() == expected


def mask_of(tokens: np.ndarray, rule: Goldfish) -> np.ndarray:
    """Which targets of one document are dropped."""
    targets = np.zeros(len(tokens), np.int32)
    drop(np.empty(0, np.int32), tokens.astype(np.int32), targets, *rule.rule)
    dropped: np.ndarray = targets == IGNORED
    return dropped


@pytest.mark.parametrize("vocab", [2, 50, 128_000])
@pytest.mark.parametrize("rule", [Goldfish(2, 13), Goldfish(4, 13), Goldfish(50, 50)], ids=str)
def test_one_of_k_is_dropped(rule: Goldfish, vocab: int) -> None:
    tokens = np.random.default_rng(0).integers(0, vocab, 200_000)
    dropped = mask_of(tokens, rule).mean()
    distinct = min(len(tokens), vocab**rule.h)
    assert dropped == pytest.approx(1 / rule.k, abs=5 * (rule.k * distinct) ** -0.5)


def test_a_passage_has_the_same_gaps_wherever_it_is() -> None:
    random, rule = np.random.default_rng(1), Goldfish(4, 13)
    passage, *others = (random.integers(0, 1000, size) for size in (300, 40, 7))
    here, there = (mask_of(np.concatenate((before, passage)), rule)[len(before) :] for before in others)
    assert here[rule.h - 1 :].tolist() == there[rule.h - 1 :].tolist()
    assert here.any()


def test_the_gaps_never_change() -> None:
    tokens = np.arange(100) * 7919 % 101
    assert np.flatnonzero(mask_of(tokens, Goldfish(10, 5))).tolist() == [16, 29, 37, 45, 76, 91]
    assert np.flatnonzero(mask_of(tokens, Goldfish(50, 50))).tolist() == [56]

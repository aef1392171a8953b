"""Rows -> arrays: a document's next token is the target, and nothing is predicted across documents."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.corpus import document_ends, gather_known, gather_window, make_blocks
from trivium.rows.batch import IGNORED, PADDING
from trivium.rows.blocks import FileBlocks
from trivium.rows.kernels import address_of
from trivium.rows.packing import Policy
from trivium.rows.window import Window, make_window
from trivium.tokenfiles.open import open_source

FILES = st.lists(st.lists(st.integers(1, 60), min_size=1, max_size=12), min_size=1, max_size=3)
POLICIES = st.sampled_from(["concat", "bestfit", "crop", "crop-first", "pad"])


def window_of(blocks: FileBlocks, policy: Policy, seq_len: int) -> Window:
    return make_window(blocks.spans(np.arange(blocks.num_blocks)), policy, seq_len, key=0)


def plain_gather(files: list[list[int]], window: Window, loss: bool) -> list[list[list[int]]]:
    """The rule, token by token; a token's id is its number in the source."""
    ends = set(document_ends(files).tolist())
    firsts = np.cumsum([0, *(sum(lengths) for lengths in files)]).tolist()
    rows = []
    for first, end in pairwise(window.row_starts.tolist()):
        slots = []
        for segment, piece in enumerate(range(first, end)):
            start = firsts[window.files[piece]] + int(window.pieces[piece, 0])
            for position in range(window.lengths[piece]):
                token = start + position
                masked = token + 1 in ends or (loss and (token + 1) % 3 == 0)
                slots.append([token, IGNORED if masked else token + 1, segment, position])
        slots += [[0, IGNORED, PADDING, 0]] * (window.seq_len - len(slots))
        rows.append(slots[: window.seq_len])  # a row of crop has one token more, which is a target only
    arrays: list[list[list[int]]] = np.array(rows).transpose(2, 0, 1).tolist()
    return arrays


def test_three_documents_in_rows_of_six() -> None:
    blocks = make_blocks([[3, 8, 2]], block_tokens=64)
    window = window_of(blocks, "bestfit", 6)
    tokens, targets, segments, positions = (each.tolist() for each in gather_window(blocks, window))
    order = [tokens.index(row) for row in ([3, 4, 5, 6, 7, 8], [0, 1, 2, 9, 10, 0], [11, 12, 0, 0, 0, 0])]
    assert [targets[row] for row in order] == [
        [4, 5, 6, 7, 8, 9],
        [1, 2, -100, 10, -100, -100],
        [12, -100, -100, -100, -100, -100],
    ]
    assert [segments[row] for row in order] == [[0] * 6, [0, 0, 0, 1, 1, -1], [0, 0, -1, -1, -1, -1]]
    assert [positions[row] for row in order] == [[0, 1, 2, 3, 4, 5], [0, 1, 2, 0, 1, 0], [0, 1, 0, 0, 0, 0]]


@given(FILES, POLICIES, st.integers(1, 40), st.booleans())
def test_every_slot_follows_the_rule(files: list[list[int]], policy: Policy, seq_len: int, loss: bool) -> None:
    blocks = make_blocks(files, loss=loss)
    window = window_of(blocks, policy, seq_len)
    assert gather_window(blocks, window).tolist() == plain_gather(files, window, loss)


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", "int64"])
def test_tokens_of_any_width_become_the_same_rows(dtype: str) -> None:
    blocks = make_blocks([[3, 8, 2, 30], [17, 5]])
    window = window_of(blocks, "bestfit", 12)
    expected = gather_window(blocks, window).tolist()
    copies = [file.open().tokens.astype(dtype) for file in blocks.files]
    addresses = np.array([address_of(copy) for copy in copies])
    blocks.table = replace(blocks.table, tokens=addresses, itemsize=np.full(2, copies[0].itemsize))
    assert gather_window(blocks, window).tolist() == expected


@given(FILES, POLICIES, st.integers(1, 40), st.booleans(), st.data())
def test_an_id_beyond_the_vocabulary_is_found_if_and_only_if_a_batch_would_have_it(
    files: list[list[int]], policy: Policy, seq_len: int, loss: bool, data: st.DataObject
) -> None:
    blocks = make_blocks(files, loss=loss)
    window = window_of(blocks, policy, seq_len)
    vocab = data.draw(st.integers(0, sum(map(sum, files))))
    tokens, targets, _, _ = gather_window(make_blocks(files), window)
    rows = np.flatnonzero(np.any(np.maximum(tokens, targets) >= vocab, axis=1))
    _, (row, file, offset) = gather_known(blocks, window, vocab)
    assert row == (rows[0] if len(rows) else -1)
    if row >= 0:
        pieces = window.row_pieces(row).tolist()
        assert (file, offset) in [(word >> 32, first) for first, word in pieces]


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        *(("uint8", 200), ("int8", -1), ("uint16", 40_000), ("int16", -1), ("uint32", 2**32 - 1), ("uint32", 2**31)),
        *(("int32", -1), ("int64", -1), ("int64", 2**32), ("int64", -(2**32)), ("uint64", 2**63), ("uint64", 2**32)),
    ],
)
def test_an_unknown_id_of_any_dtype_is_found(tmp_path: Path, dtype: str, value: int) -> None:
    """Also where its lower bits are a known id, and where all ids that the dtype could have are known."""
    tokens = np.zeros(20, dtype)
    tokens[12] = value
    np.save(tmp_path / "web.npy", tokens)
    blocks = FileBlocks("web", open_source(str(tmp_path / "web.npy")), "", 16, 3)
    vocab = 200 if dtype == "uint8" else 40_000 if dtype == "uint16" else 2**31 - 1
    assert gather_known(blocks, window_of(blocks, "concat", 20), vocab)[1] == (0, 0, 0)

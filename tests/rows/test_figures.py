"""Figures are what the gathered rows hold."""

from dataclasses import fields

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.support.corpus import gather_window, make_blocks
from trivium.rows.batch import IGNORED
from trivium.rows.figures import COLUMNS, Figures, row_figures, window_figures
from trivium.rows.packing import Policy
from trivium.rows.piece import continues
from trivium.rows.window import make_window

FILES = st.lists(st.lists(st.integers(1, 60), min_size=1, max_size=12), min_size=1, max_size=3)
POLICIES = st.sampled_from(["concat", "bestfit", "crop", "crop-first", "pad"])
TEN = [3, 5, 2, 9, 4, 1, 7, 6, 3, 8]


def figures_of(files: list[list[int]], policy: Policy, seq_len: int, loss: bool = False) -> Figures:
    blocks = make_blocks(files, block_tokens=64, loss=loss)
    window = make_window(blocks.spans(np.arange(blocks.num_blocks)), policy, seq_len, key=0)
    return Figures(*window_figures(window, blocks.table.loss).tolist())


def test_ten_documents_in_numbers() -> None:
    # 48 tokens in 6 full rows; 2 of the 12 pieces are cut, so that 10 of the 48 tokens end a document.
    assert figures_of([TEN], "concat", 8) == Figures(6, 48, 48, 12, 2, 38, 38)
    # One document a row, but for that of 9 tokens, which needs two.
    assert figures_of([TEN], "pad", 8) == Figures(11, 48, 48, 11, 1, 38, 38)
    # Every third token has the loss byte 0: 16 of 48, of which 3 (0, 3 and 24) begin a document and are not targets.
    assert figures_of([TEN], "concat", 8, loss=True) == Figures(6, 48, 48, 12, 2, 38, 25)


def test_columns_are_the_fields() -> None:
    assert len(fields(Figures)) == COLUMNS


@given(FILES, POLICIES, st.integers(1, 40))
def test_figures_count_what_was_gathered(files: list[list[int]], policy: Policy, seq_len: int) -> None:
    plain, masked = make_blocks(files), make_blocks(files, loss=True)
    spans = plain.spans(np.arange(plain.num_blocks))
    window = make_window(spans, policy, seq_len, key=0)
    by_row = row_figures(window, masked.table.loss)
    assert window_figures(window, masked.table.loss).tolist() == by_row.sum(axis=0).tolist()
    found = [Figures(*row) for row in by_row.tolist()]
    targets = [(gather_window(blocks, window)[1] != IGNORED).sum(axis=1).tolist() for blocks in (plain, masked)]
    assert [each.loss_tokens for each in found] == targets[0]
    assert [each.unmasked for each in found] == targets[1]
    assert [each.rows for each in found] == [1] * window.num_rows
    assert [each.pieces for each in found] == np.diff(window.row_starts).tolist()
    assert sum(each.tokens for each in found) == window.lengths.sum()
    assert sum(each.consumed for each in found) == spans.length.sum()
    assert sum(each.cut for each in found) == continues(window.pieces[:, 1]).sum()

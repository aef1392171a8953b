"""Blocks cover every document once; hold-outs stay put."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.corpus import make_blocks, write_source
from trivium.errors import SourceError
from trivium.rows.blocks import FileBlocks, HoldOut, Spans
from trivium.rows.piece import file_of, is_in_last, length_of
from trivium.tokenfiles.open import open_source

FILES = st.lists(st.lists(st.integers(0, 60), min_size=1, max_size=12), min_size=1, max_size=4).filter(
    lambda files: all(sum(lengths) for lengths in files)
)


def as_tuples(spans: Spans) -> list[tuple[int, int, int, bool]]:
    """File, offset, length, and whether it is its document's last."""
    return [(file_of(word), offset, length_of(word), is_in_last(word)) for offset, word in spans.pieces.tolist()]


def test_a_block_has_the_documents_that_start_in_it() -> None:
    blocks = make_blocks([[3, 5, 2]], block_tokens=4)
    assert blocks.num_blocks == 3
    assert as_tuples(blocks.spans(np.array([0]))) == [(0, 0, 3, True), (0, 3, 4, False)]
    assert as_tuples(blocks.spans(np.array([1]))) == [(0, 7, 1, True)]
    assert as_tuples(blocks.spans(np.array([2]))) == [(0, 8, 2, True)]


def test_a_file_without_documents_is_cut_at_the_size_of_a_block() -> None:
    blocks = make_blocks([[10]], block_tokens=4)
    found = as_tuples(blocks.spans(np.array([2, 0, 1])))
    assert found == [(0, 8, 2, True), (0, 0, 4, False), (0, 4, 4, False)]


def test_empty_documents_are_passed_over() -> None:
    blocks = make_blocks([[0, 3, 0, 0, 2, 0]], block_tokens=4)
    assert as_tuples(blocks.spans(np.arange(2))) == [(0, 0, 3, True), (0, 3, 2, True)]


@given(FILES, st.integers(1, 30))
def test_all_blocks_together_have_every_token_once(files: list[list[int]], block_tokens: int) -> None:
    blocks = make_blocks(files, block_tokens)
    spans = blocks.spans(np.arange(blocks.num_blocks))
    read = [(file, token) for file, offset, length, _ in as_tuples(spans) for token in range(offset, offset + length)]
    assert sorted(read) == [(file, token) for file, lengths in enumerate(files) for token in range(sum(lengths))]
    assert blocks.count() == (sum(map(len, files)), sum(map(sum, files)))


@given(FILES, st.integers(1, 30))
def test_a_span_lies_in_one_document_and_knows_whether_it_ends_it(files: list[list[int]], block_tokens: int) -> None:
    blocks = make_blocks(files, block_tokens)
    for file, offset, length, is_last in as_tuples(blocks.spans(np.arange(blocks.num_blocks))):
        number, start = blocks.document_at(file, offset)
        assert blocks.document_at(file, offset + length - 1) == (number, start)
        assert blocks.document_span(number)[:2] == (file, start)
        assert is_last == (blocks.document_span(number)[2] == offset + length)
        assert length <= block_tokens
        assert (offset - start) % block_tokens == 0


@given(FILES, st.integers(1, 30))
def test_the_blocks_of_a_document_are_those_that_have_its_spans(files: list[list[int]], block_tokens: int) -> None:
    blocks = make_blocks(files, block_tokens)
    having: dict[int, set[int]] = {}
    for block in range(blocks.num_blocks):
        for file, offset, _, _ in as_tuples(blocks.spans(np.array([block]))):
            having.setdefault(blocks.document_at(file, offset)[0], set()).add(block)
    for document, found in having.items():
        assert set(blocks.blocks_of(document).tolist()) == found


@given(FILES, st.floats(0.01, 0.99))
def test_held_out_documents_and_the_others_are_all_documents(files: list[list[int]], share: float) -> None:
    train = make_blocks(files, 16, hold_out=HoldOut(share, wanted=False))
    held = make_blocks(files, 16, hold_out=HoldOut(share, wanted=True))
    parts = [set(as_tuples(blocks.spans(np.arange(blocks.num_blocks)))) for blocks in (train, held)]
    whole = make_blocks(files, 16)
    assert parts[0] | parts[1] == set(as_tuples(whole.spans(np.arange(whole.num_blocks))))
    assert not parts[0] & parts[1]
    counts = np.add(train.count(), held.count())
    assert tuple(counts.tolist()) == whole.count()


def test_new_files_move_no_document_in_or_out_of_the_hold_out() -> None:
    rng = np.random.default_rng(0)
    files = [rng.integers(1, 50, 200).tolist() for _ in range(3)]
    few, many = (make_blocks(files[:count], 64, hold_out=HoldOut(0.2, wanted=True)) for count in (2, 3))
    held_in_few = as_tuples(few.spans(np.arange(few.num_blocks)))
    assert [span for span in as_tuples(many.spans(np.arange(many.num_blocks))) if span[0] < 2] == held_in_few
    assert 0.1 < len(held_in_few) / 400 < 0.3


@pytest.mark.parametrize("ending", ["", ".index", ".loss"])
def test_a_file_that_was_truncated_since_it_was_opened_is_refused_by_name(tmp_path: Path, ending: str) -> None:
    opened = open_source(write_source(tmp_path, [[3, 5], [2, 2]], loss=True))
    blocks = FileBlocks("web", opened, "", 16, 3)
    path = Path(f"{opened[1].path}{ending}")
    size = path.stat().st_size
    os.truncate(path, 1)
    blocks.spans(np.array([0]))  # of the other file
    with pytest.raises(SourceError) as error:
        blocks.spans(np.array([1]))
    assert str(error.value) == (
        f"{path} (documents of web from 2 on): had {size} bytes, has 1. "
        "Files must stay as they are while a run reads them."
    )


def test_a_file_that_was_deleted_since_it_was_opened_is_read_to_its_end(tmp_path: Path) -> None:
    opened = open_source(write_source(tmp_path / "web", [[3, 5, 2]], loss=True))
    blocks = FileBlocks("web", opened, "", 16, 3)
    before = as_tuples(blocks.spans(np.array([0])))
    shutil.rmtree(tmp_path / "web")
    assert as_tuples(blocks.spans(np.array([0]))) == before
    (tmp_path / "web").touch()
    with pytest.raises(SourceError, match="cannot be read any more: Not a directory"):
        blocks.spans(np.array([0]))

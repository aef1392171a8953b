"""What ranks were given is put together in the order of their rows, whoever shares them."""

from dataclasses import fields
from pathlib import Path

import numpy as np

from tests.support.batches import make_batch
from trivium.prove.given import given_batches, row_hashes, write_given
from trivium.rows.batch import Batch
from trivium.run.folder import RunFolder

BATCH = make_batch(((3, 5), (8,), (2, 2), (7,)))


def test_every_slot_and_the_source_of_a_row_count() -> None:
    whole = row_hashes(BATCH)
    assert len(set(whole)) == 4
    for field in fields(Batch)[:5]:
        changed = BATCH.rows(0, 4)
        array = getattr(changed, field.name).copy()
        array[2] = 1 - array[2] if array.ndim == 1 else np.roll(array[2], 1) + 1
        setattr(changed, field.name, array)
        equal = [one == other for one, other in zip(row_hashes(changed), whole, strict=True)]
        assert equal == [True, True, False, True], field.name


def test_a_batch_is_the_same_on_any_readers_and_ranks_that_share_them(tmp_path: Path) -> None:
    for name, readers, sharing in (("one", 1, 1), ("two", 2, 1), ("four", 2, 2)):
        size = 4 // readers
        for rank in range(readers * sharing):
            reader = rank // sharing
            write_given(tmp_path / name, rank, 7, (reader, readers), BATCH.rows(reader * size, (reader + 1) * size))
        assert given_batches(RunFolder(tmp_path / name)) == {7: row_hashes(BATCH)}


def test_ranks_that_share_rows_and_were_given_others_have_no_batch_and_so_has_a_reader_that_is_missing(
    tmp_path: Path,
) -> None:
    write_given(tmp_path, 0, 1, (0, 1), BATCH)
    write_given(tmp_path, 1, 1, (0, 1), BATCH.rows(0, 3))
    write_given(tmp_path, 0, 2, (0, 2), BATCH)
    write_given(tmp_path, 0, 3, (0, 1), BATCH)
    write_given(tmp_path, 0, 3, (0, 1), BATCH)  # taken again
    assert given_batches(RunFolder(tmp_path)) == {1: None, 2: None, 3: row_hashes(BATCH)}

"""Rows of a larger vocabulary, part by part."""

import numpy as np
import pytest

from trivium.engine.grow import grown_part, mean_row

ROWS = np.arange(15, dtype=np.float32).reshape(5, 3)


@pytest.mark.parametrize("averaged", [True, False])
@pytest.mark.parametrize("parts", [1, 2, 3, 8])
def test_parts_make_the_whole(parts: int, averaged: bool) -> None:
    whole = np.zeros((8, 3), np.float32)
    whole[:5] = ROWS
    whole[5:7] = ROWS.mean(axis=0) if averaged else 0
    bounds = np.linspace(0, 8, parts + 1).astype(int)
    found = [
        grown_part(ROWS, (slice(first, stop), slice(None)), (8, 3), 7, averaged=averaged)
        for first, stop in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)
    ]
    assert np.array_equal(np.concatenate(found), whole)


def test_columns_may_be_a_part_too() -> None:
    found = grown_part(ROWS, (slice(4, 6), slice(1, 3)), (8, 3), 7, averaged=True)
    assert found.tolist() == [[13.0, 14.0], [7.0, 8.0]]


def test_the_mean_is_taken_in_float64() -> None:
    rows = np.full((2**12, 1), 1e8, np.float32)
    rows[1::2] = 1
    assert mean_row(rows).tolist() == [np.float32((1e8 + 1) / 2)]
    assert mean_row(rows).dtype == np.float32

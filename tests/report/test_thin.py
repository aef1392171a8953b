"""Thinning keeps what the eye would see: ends, and the least and the greatest of every bucket."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from trivium.report.thin import bucket_edges, bucket_sums, thinned


@given(st.lists(st.floats(-1e6, 1e6), max_size=400), st.integers(2, 60))
def test_the_least_the_greatest_and_both_ends_stay(numbers: list[float], points: int) -> None:
    values = np.array(numbers)
    kept = thinned(values, points)
    assert (np.diff(kept) > 0).all()
    assert len(kept) <= max(points + 4, min(len(values), points))
    if len(values):
        assert {0, len(values) - 1} <= set(kept.tolist())
        assert values[kept].min() == values.min()
        assert values[kept].max() == values.max()
    if len(values) <= points:
        assert len(kept) == len(values)


def test_a_spike_of_one_step_in_100_000_is_kept() -> None:
    values = np.ones(100_000)
    values[41_337] = 9.0
    kept = thinned(values, 1_000)
    assert 41_337 in kept
    assert len(kept) <= 1_004


def test_nan_hides_no_extreme() -> None:
    values = np.ones(1_000)
    values[::2] = np.nan
    values[501] = 7.0
    assert 501 in thinned(values, 10)


@given(st.integers(1, 500), st.integers(1, 50))
def test_buckets_add_up_to_the_whole(length: int, buckets: int) -> None:
    edges = bucket_edges(length, buckets)
    sums = bucket_sums(np.arange(length, dtype=float), edges)
    assert len(edges) <= buckets
    assert sums.sum() == length * (length - 1) / 2

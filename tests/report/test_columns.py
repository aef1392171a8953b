"""Columns grow step by step and are cut where a run resumed; thinned, they keep what the eye would see."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from trivium.report.columns import Columns, bucket_edges, bucket_sums, thinned


def columns_of(*steps: int) -> Columns:
    columns = Columns()
    for step in steps:
        columns.append(step, {"loss": float(step)})
    return columns


def test_a_step_taken_again_takes_the_place_of_itself_and_of_all_behind_it() -> None:
    columns = columns_of(1, 2, 3, 4, 5)
    columns.append(3, {"loss": 33.0})
    assert columns.steps.tolist() == [1, 2, 3]
    assert columns.column("loss").tolist() == [1.0, 2.0, 33.0]


def test_cut_keeps_the_step_it_names() -> None:
    columns = columns_of(1, 2, 3)
    columns.cut(2)
    assert columns.steps.tolist() == [1, 2]
    columns.cut(0)
    assert len(columns) == 0


def test_a_figure_that_comes_later_is_not_known_before() -> None:
    columns = columns_of(1, 2)
    columns.append(3, {"loss_by_source/web": 4.0})
    columns.append(4, {"loss": 1.0, "loss_by_source/web": 5.0})
    assert np.isnan(columns.column("loss_by_source/web")[:2]).all()
    assert [part.tolist() for part in columns.known("loss_by_source/web")] == [[3, 4], [4.0, 5.0]]
    assert columns.known("loss")[0].tolist() == [1, 2, 4]
    assert columns.under("loss_by_source") == ["web"]
    assert np.isnan(columns.column("never")).all()


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

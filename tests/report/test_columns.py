"""Columns grow step by step and are cut where a run resumed."""

import numpy as np

from trivium.report.columns import Columns


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

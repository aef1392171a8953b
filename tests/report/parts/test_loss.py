"""Losses by position, as the page shows them."""

from pathlib import Path

import pytest

from tests.support.pages import charts_of, data_in, tables_of
from trivium.report.page import write_report


def test_the_loss_by_position_is_a_table(run_folder: Path, tmp_path: Path) -> None:
    rows = tables_of(data_in(write_report([run_folder], tmp_path / "page.html")))["positions-0"]
    assert len(rows) > 1
    first, second, third = (float(cell) for cell in rows[0][2:])
    assert first - second == pytest.approx(0.5)
    assert second - third == pytest.approx(0.2)


def test_the_loss_by_position_is_a_chart_with_a_line_for_each_range(run_folder: Path, tmp_path: Path) -> None:
    data = data_in(write_report([run_folder], tmp_path / "page.html"))
    series = charts_of(data)["validation-by-position"]["series"]
    assert list(dict.fromkeys(each["label"] for each in series)) == ["from 0", "from 64", "from 128"]
    points = sum(each["all"] for each in series if each["label"] == "from 128")
    assert points == len(tables_of(data)["positions-0"])

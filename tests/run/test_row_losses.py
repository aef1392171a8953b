"""Losses of rows on disk: the last thousand steps, whole after any kill, and never those of steps that were lost."""

import os
from pathlib import Path

import numpy as np
import pytest

from trivium.run.row_losses import BEFORE, KEPT_STEPS, RECENT, RowLosses, recent_losses

SAID: list[str] = []


def launch(folder: Path, first: int, end: int, rows: int = 3, sign: float = 1.0) -> None:
    """A launch that takes these steps; row r of step s has the loss s + r / 10."""
    kept = RowLosses(folder, SAID.append)
    kept.begin(first)
    for step in range(first, end):
        kept.add(step, (sign * (step + np.arange(rows) / 10)).astype(np.float32))
    kept.close()


def first_of(folder: Path, step: int) -> float | None:
    found = recent_losses(folder, step)
    return None if found is None else float(found[0])


def test_the_last_thousand_steps_are_kept_and_few_more(tmp_path: Path) -> None:
    launch(tmp_path, 0, 2 * KEPT_STEPS + 5)
    end = 2 * KEPT_STEPS + 5
    assert all(first_of(tmp_path, step) == step for step in (end - 1, end - 6, end - KEPT_STEPS))
    assert first_of(tmp_path, KEPT_STEPS - 1) is None
    assert recent_losses(tmp_path, end - 1) == pytest.approx([end - 1, end - 0.9, end - 0.8])
    sizes = [(tmp_path / name).stat().st_size for name in (RECENT, BEFORE)]
    assert sizes == [16 + 5 * (16 + 12), 16 + KEPT_STEPS * (16 + 12)]


@pytest.mark.parametrize("resumed_at", [0, 7, KEPT_STEPS - 1, KEPT_STEPS, KEPT_STEPS + 3])
def test_a_resume_drops_what_a_lost_launch_has_kept(tmp_path: Path, resumed_at: int) -> None:
    launch(tmp_path, 0, KEPT_STEPS + 10)
    launch(tmp_path, resumed_at, resumed_at + 1, rows=2, sign=-1.0)
    assert first_of(tmp_path, resumed_at) == -resumed_at
    assert first_of(tmp_path, resumed_at + 1) is None
    assert first_of(tmp_path, KEPT_STEPS + 9) is None
    if resumed_at:
        assert first_of(tmp_path, resumed_at - 1) == resumed_at - 1


def test_a_step_that_a_kill_has_truncated_is_none(tmp_path: Path) -> None:
    launch(tmp_path, 0, 4)
    size = (tmp_path / RECENT).stat().st_size
    for lost in range(1, 16 + 12):
        os.truncate(tmp_path / RECENT, size - lost)
        assert [first_of(tmp_path, step) for step in range(4)] == [0, 1, 2, None]
    launch(tmp_path, 3, 5)
    assert [first_of(tmp_path, step) for step in range(5)] == [0, 1, 2, 3, 4]


def test_bytes_that_changed_end_the_file(tmp_path: Path) -> None:
    launch(tmp_path, 0, 3)
    content = bytearray((tmp_path / RECENT).read_bytes())
    content[16 + 28 + 20] ^= 1  # a loss of the second step
    (tmp_path / RECENT).write_bytes(content)
    assert [first_of(tmp_path, step) for step in range(3)] == [0, None, None]
    (tmp_path / RECENT).write_bytes(b"something else")
    assert first_of(tmp_path, 0) is None
    launch(tmp_path, 5, 6)
    assert first_of(tmp_path, 5) == 5


def test_a_folder_that_cannot_be_written_to_is_told_of_once(tmp_path: Path) -> None:
    (tmp_path / "rows").write_text("a file where the folder would be")
    SAID.clear()
    launch(tmp_path, 0, 3)
    assert SAID == ["losses of rows are not kept from here on: File exists"]
    launch_without_folder = RowLosses(None, SAID.append)
    launch_without_folder.begin(0)
    launch_without_folder.add(0, np.zeros(2, np.float32))
    assert len(SAID) == 1

"""Saves of a run: whole or absent, which of them stay, and what happens when one fails."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.support.batches import TINY, make_batch, settings_at
from trivium.config.schema import Cadence as CadenceConfig
from trivium.engine.base import EngineSettings, StageSettings
from trivium.engine.make import make_engine
from trivium.errors import SaveError
from trivium.run.events import Saved, SaveFailed
from trivium.run.folder import RunFolder
from trivium.run.mirror import Mirror
from trivium.run.saver import Cadence, Retention, Saver

KEEP_TWO = Retention(keep=2, boundaries=frozenset({3}), total_steps=10)


@pytest.fixture(scope="module")
def engine() -> Any:
    """A tiny model on the CPU."""
    made = make_engine(EngineSettings(TINY, device="cpu"))
    made.enter(StageSettings(seq_len=16))
    made.step(make_batch(), settings_at())
    return made


def new_saver(folder: Path, retention: Retention = KEEP_TWO, **parts: Any) -> tuple[Saver, list[Saved | SaveFailed]]:
    told: list[Saved | SaveFailed] = []
    return Saver(RunFolder(folder), retention, told.append, **parts), told


def steps(folder: Path) -> list[int]:
    return [checkpoint.step for checkpoint in RunFolder(folder).checkpoints()]


@pytest.mark.parametrize("background", [False, True])
def test_a_save_is_a_sound_checkpoint_and_is_reported(engine: Any, tmp_path: Path, background: bool) -> None:
    saver, told = new_saver(tmp_path)
    saver.save(engine, 4, {"step": 4}, "cadence", background=background)
    saver.close()
    (checkpoint,) = RunFolder(tmp_path).checkpoints()
    assert checkpoint.verify() is None
    assert json.loads((checkpoint.path / "state.json").read_text()) == {"step": 4}
    (event,) = told
    assert isinstance(event, Saved)
    assert (event.step, event.reason, event.path) == (4, "cadence", str(checkpoint.path))
    assert event.bytes == sum(file["bytes"] for file in checkpoint.files().values())


def test_the_last_ones_boundaries_milestones_the_best_and_the_final_one_stay() -> None:
    retention = Retention(keep=2, boundaries=frozenset({3, 99}), total_steps=10, milestones=4)
    assert retention.kept([1, 2, 3, 4, 5, 6, 7, 8, 9, 10], best=5) == {3, 4, 5, 8, 9, 10}
    assert retention.kept([1, 2], best=None) == {1, 2}


def test_what_need_not_stay_is_deleted_here_and_in_the_second_place(engine: Any, tmp_path: Path) -> None:
    failures: list[str] = []
    mirror = Mirror(
        RunFolder(tmp_path / "first"), RunFolder(tmp_path / "second"), lambda checkpoint, why: failures.append(why)
    )
    saver, _ = new_saver(tmp_path / "first", mirror=mirror)
    saver.best_step = 2
    for step in (1, 2, 3, 4, 5, 6):
        saver.save(engine, step, {}, "cadence", background=True)
    saver.close()
    assert steps(tmp_path / "first") == steps(tmp_path / "second") == [2, 3, 5, 6]
    assert failures == []


def test_the_second_place_keeps_what_a_lost_folder_had(engine: Any, tmp_path: Path) -> None:
    failures: list[str] = []
    retention = Retention(keep=2, boundaries=frozenset({3}), total_steps=10, milestones=4)

    def second() -> Mirror:
        return Mirror(
            RunFolder(tmp_path / "first"), RunFolder(tmp_path / "second"), lambda checkpoint, why: failures.append(why)
        )

    saver, _ = new_saver(tmp_path / "first", retention, mirror=second())
    for step in (1, 2, 3, 4, 5, 6):
        saver.save(engine, step, {}, "cadence")
    saver.close()
    assert steps(tmp_path / "second") == [3, 4, 5, 6]
    shutil.rmtree(tmp_path / "first")
    killed = tmp_path / "second" / "checkpoints" / ".copy-step-00000006"
    killed.mkdir()
    again, _ = new_saver(tmp_path / "first", retention, mirror=second())
    again.folder.take(RunFolder(tmp_path / "second").checkpoints()[-1])
    for step in (7, 8):
        again.save(engine, step, {}, "cadence")
    again.close()
    assert steps(tmp_path / "first") == [7, 8]
    assert steps(tmp_path / "second") == [3, 4, 7, 8]
    assert not killed.exists()
    assert failures == []


def test_a_checkpoint_that_retention_removed_before_its_copy_is_no_failure(engine: Any, tmp_path: Path) -> None:
    saver, _ = new_saver(tmp_path / "first", Retention(keep=3, boundaries=frozenset(), total_steps=10))
    for step in (1, 2, 3):
        saver.save(engine, step, {}, "cadence")
    checkpoints = saver.folder.checkpoints()
    saver.folder.keep_only({1, 3})  # as a later save does while the copies are under way
    (checkpoints[0].path / "state.json").unlink()
    failures: list[int] = []
    mirror = Mirror(
        RunFolder(tmp_path / "first"),
        RunFolder(tmp_path / "second"),
        lambda checkpoint, why: failures.append(checkpoint.step),
    )
    mirror.copy(checkpoints[1:], set)
    mirror.wait()
    assert (steps(tmp_path / "second"), failures) == ([3], [])
    mirror.copy(checkpoints, set)
    mirror.wait()
    assert failures == [1]  # what is there and cannot be copied is one


def test_the_second_place_keeps_later_steps_than_the_run_has(engine: Any, tmp_path: Path) -> None:
    for step in (1, 2, 9):
        saver, _ = new_saver(tmp_path / "second")
        saver.save(engine, step, {}, "cadence")
    mirror = Mirror(RunFolder(tmp_path / "first"), RunFolder(tmp_path / "second"), lambda checkpoint, why: None)
    saver, _ = new_saver(tmp_path / "first", mirror=mirror)
    for step in (3, 4, 5):
        saver.save(engine, step, {}, "cadence")
    saver.close()
    assert steps(tmp_path / "second") == [3, 4, 5, 9]


def test_a_save_that_fails_leaves_the_one_before_and_waits_twice_as_long_each_time(
    engine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr("trivium.run.saver.time.monotonic", lambda: now)
    saver, told = new_saver(tmp_path)
    saver.save(engine, 1, {}, "cadence")
    blocked = RunFolder(tmp_path).draft_path(2)
    blocked.write_text("a file where a folder has to be")
    monkeypatch.setattr("trivium.run.folder.shutil.rmtree", lambda *_, **__: None)
    for pause in (30.0, 60.0, 120.0):
        saver.save(engine, 2, {}, "cadence", background=True)
        saver.wait()
        assert not saver.wants_to_try_again
        now += pause - 0.5
        assert not saver.wants_to_try_again
        now += 1.0
        assert saver.wants_to_try_again
    assert [type(event) for event in told] == [Saved, SaveFailed, SaveFailed, SaveFailed]
    monkeypatch.undo()
    os.unlink(blocked)
    saver.save(engine, 2, {}, "cadence")
    assert not saver.wants_to_try_again
    assert steps(tmp_path) == [1, 2]


def test_a_save_that_must_succeed_ends_the_run_where_it_cannot(engine: Any, tmp_path: Path) -> None:
    saver, told = new_saver(tmp_path)
    (tmp_path / "checkpoints").write_text("in the way")
    with pytest.raises(SaveError) as error:
        saver.save(engine, 3, {}, "boundary", must_succeed=True)
    assert str(error.value).startswith(f"{tmp_path}/checkpoints: the checkpoint of step 3 (boundary) cannot be written")
    (event,) = told
    assert isinstance(event, SaveFailed)


def test_a_checkpoint_is_due_every_n_steps_or_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    by_steps = Cadence(CadenceConfig(steps=3))
    assert [step for step in range(1, 10) if by_steps.due(step)] == [3, 6, 9]
    now = 0.0
    monkeypatch.setattr("trivium.run.saver.time.monotonic", lambda: now)
    by_minutes = Cadence(CadenceConfig(minutes=2))
    due = []
    for step in range(1, 8):
        now += 50.0
        due += [step] if by_minutes.minutes_over() else []
    assert due == [3, 6]
    assert not Cadence(None).due(1000)
    assert not Cadence(None).minutes_over()

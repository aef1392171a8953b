"""Where events go: trackers' figures every nth step, and a tracker that fails."""

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.events import step
from tests.support.training import train
from trivium.config.schema import Track
from trivium.run.events import Evaluated
from trivium.train.trackers.make import trackers
from trivium.train.trackers.tracker import Tracked, Tracker

EVALUATED = Evaluated.without_validation(5, "general")


class Kept(Tracker):
    """Keeps what it is given; fails where it is told to."""

    fails_at: tuple[int, ...] = ()

    def __init__(self, every: int) -> None:
        self.said: list[str] = []
        self.steps: list[int] = []
        super().__init__(Tracked(Path(), "run", {}, every, {}, self.said.append))

    def log(self, found: Mapping[str, float], step: int) -> None:
        if step in self.fails_at:
            raise ConnectionError("no route to host")
        self.steps.append(step)

    def close(self) -> None:
        pass


def test_a_tracker_gets_every_nth_step_and_all_evaluations() -> None:
    tracker = Kept(3)
    for number in range(1, 8):
        tracker.write(step(number))
    tracker.write(replace(EVALUATED, loss=1.0))
    assert tracker.steps == [3, 6, 5]


def test_a_tracker_that_fails_is_reported_once_and_ends_nothing() -> None:
    tracker = Kept(1)
    tracker.fails_at = (2, 3)
    for number in range(1, 5):
        tracker.write(step(number))
    assert tracker.steps == [1, 4]
    assert tracker.said == ["Kept failed, and may lack figures from here on: no route to host"]


def test_track_every_reaches_tensorboard(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (board,) = trackers(
        Track(trackers=("tensorboard",), every=4), tmp_path, tmp_path / "events.jsonl", "run", {}, print
    )
    for number in range(1, 10):
        board.write(step(number))
    board.close()
    read = EventAccumulator(str(tmp_path / "tensorboard"))
    read.Reload()
    assert [scalar.step for scalar in read.Scalars("train/loss")] == [4, 8]


def test_tensorboard_is_a_sink_by_name(folder: Path) -> None:
    train("track.trackers=['tensorboard']", "stages.0.steps=2", "schedule={}")
    assert list(Path("runs/run/tensorboard").glob("events.out.tfevents.*"))


@pytest.mark.slow
def test_wandb_is_a_sink_by_name(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    train("track.trackers=['wandb']", "stages.0.steps=2", "schedule={}")
    (kept,) = Path("runs/run/wandb").glob("offline-run-*/run-run.wandb")
    end = time.monotonic() + 60  # wandb's own process writes it, and may do so after the run has ended
    while b"validation" not in kept.read_bytes():
        assert time.monotonic() < end
        time.sleep(0.1)

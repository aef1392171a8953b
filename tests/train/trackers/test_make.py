"""Trackers of a run with their real packages: trackio's database, MLflow's; a resume goes on in the same run."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.events import step
from tests.support.training import StoppingTrainer, train, write_four_stages
from trivium.config.schema import Track
from trivium.train.trackers.make import trackers
from trivium.train.trackers.mlflow import Mlflow, flattened
from trivium.train.trackers.tracker import Tracked

SMALL = ("stages.0.steps=6", "schedule={}", "checkpoint.every=4", "stages.1.steps=2", "evaluate.every=4")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run of four stages, and trackers that write below this folder alone."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    write_four_stages(tmp_path)
    return tmp_path


class KilledError(Exception):
    """Ends a launch without a checkpoint of its last steps."""


class KilledTrainer(StoppingTrainer):
    """Raises after step 6, two steps after its last checkpoint."""

    def on_step(self, step: int, stats: Any) -> None:
        if step + 1 == 6:
            raise KilledError


def train_with_a_kill(tracker: str) -> None:
    """A run that is killed at step 6, goes on from step 4 and ends."""
    overrides = (f"track.trackers=['{tracker}']", *SMALL)
    with pytest.raises(KilledError):
        KilledTrainer("run.toml", overrides, show=False).run()
    train(*overrides)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_trackio_run_goes_on_and_has_every_step_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from trackio.sqlite_storage import SQLiteStorage

    for module in ("trackio.sqlite_storage", "trackio", "trackio.utils"):
        monkeypatch.setattr(f"{module}.TRACKIO_DIR", folder / "trackio", raising=False)
    train_with_a_kill("trackio")
    (kept,) = SQLiteStorage.get_run_records("trivium")
    assert kept["name"] == "run"
    rows = SQLiteStorage.get_logs("trivium", "run")
    assert [row["step"] for row in rows if "train/loss" in row] == list(range(1, 17))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::Warning")  # of MLflow's database
def test_an_mlflow_run_goes_on_and_has_every_step_once(folder: Path) -> None:
    from mlflow.tracking import MlflowClient

    train_with_a_kill("mlflow")
    client = MlflowClient(f"sqlite:///{folder}/runs/mlflow.db")
    experiment = client.get_experiment_by_name("trivium")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED"
    assert run.data.params["stages.0.seq_len"] == "16"
    history = client.get_metric_history(run.info.run_id, "train/loss")
    assert sorted(metric.step for metric in history) == list(range(1, 17))
    scored = client.get_metric_history(run.info.run_id, "validation/loss")
    assert len({metric.step for metric in scored}) == len(scored) > 1


class Unreachable:
    """An MLflow client without a network."""

    def log_batch(self, *_: Any, **__: Any) -> None:
        raise ConnectionError("no route to host")


def test_a_server_that_does_not_answer_is_reported_once_and_ends_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(Mlflow, "_new_run", lambda self: "1")
    tracker = Mlflow(Tracked(folder, "run", {}, 1, {}, said.append))
    tracker._client = Unreachable()  # type: ignore[assignment]
    for number in range(1, 4):
        tracker.write(step(number))
    tracker.close()
    assert said == ["Mlflow failed, and may lack figures from here on: no route to host"]


def test_a_config_becomes_parameters() -> None:
    config: Mapping[str, Any] = {
        "run": {"name": "a"},
        "stages": [{"seq_len": 8}, {"mixture": {"web,x": 1.0}}],
        "x": [1],
    }
    assert dict(flattened(config)) == {
        "run.name": "a",
        "stages.0.seq_len": "8",
        "stages.1.mixture.web_x": "1.0",
        "x": "[1]",
    }


def test_no_tracker_reads_no_events(folder: Path) -> None:
    assert trackers(Track(), folder, Path("absent", "events.jsonl"), "run", {}, print) == []
    assert not os.path.exists("mlflow.db")

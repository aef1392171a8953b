"""A run that reads a stream beside token files: killed and resumed, it ends with the same weights."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from tests.support.corpus import write_source
from tests.support.scripts import ROOT
from tests.support.streams import write_jsonl
from tests.support.training import SMALL_MODEL, losses
from trivium.engine.base import StepSettings, StepStats
from trivium.errors import PlanError, ResumeError
from trivium.files import hash_file
from trivium.loader.streams import Streams
from trivium.plan.stage import CompleteStage
from trivium.rows.batch import Batch
from trivium.run.events import read_events
from trivium.run.folder import RunFolder
from trivium.sources.stream.dataset import BUILDERS
from trivium.train.rehearse import rehearse_run
from trivium.train.trainer import Trainer

CONFIG = (
    SMALL_MODEL
    + """
vocab = 512
[tokenizer]
kind = "bytes"
[optimizer]
lr = 0.003
[schedule]
shape = "constant"
[checkpoint]
every = 3
[evaluate]
every = 4
tokens = 200
[sources.web]
kind = "stream"
dataset = "web"
lanes = 3
shuffle_buffer = 6
[sources.code]
kind = "tokens"
path = "code"
validation = 0.2
[[stages]]
name = "one"
steps = 7
mixture = { web = 0.75, code = 0.25 }
seq_len = 16
batch_size = 8
[[stages]]
name = "two"
steps = 6
mixture = { web = 0.5, code = 0.5 }
fade = { steps = 2 }
seq_len = 32
batch_size = 4
packing = "concat"
"""
)


def away(file: str) -> tuple[str, list[str]]:
    """A config and overrides that read a file of a server that nobody runs."""
    return "run.toml", [f"sources.web.dataset=http://127.0.0.1:9/{file}?token=abc"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    rng = np.random.default_rng(0)
    write_jsonl(tmp_path / "web", [rng.integers(6, 60, 9).tolist() for _ in range(2)])
    write_source(tmp_path / "code", [rng.integers(2, 24, 20).tolist()], "uint16")
    (tmp_path / "run.toml").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    return tmp_path


class Stopped(Trainer):
    """Told to stop after every fifth step."""

    def on_step(self, step: int, stats: object) -> None:
        self.stopping = (step + 1) % 5 == 0


def weights(name: str) -> dict[str, str]:
    engine = RunFolder(Path("runs") / name).checkpoints()[-1].engine
    return {path.name: hash_file(path) for path in sorted(engine.rglob("*")) if path.is_file()}


def test_without_the_package_datasets_it_is_refused_before_there_is_a_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)  # as where it is not installed
    with pytest.raises(PlanError) as caught, Trainer("run.toml", show=False).open_session():
        pass
    what = "the package datasets is not installed: pip install 'trivium[hf]'."
    assert str(caught.value) == f"run.toml:23: sources.web: {what}"
    assert not (folder / "runs").exists()


def test_a_file_that_nothing_reads_is_refused_before_there_is_a_folder(folder: Path) -> None:
    with pytest.raises(PlanError) as caught, Trainer(*away("data.xyz"), show=False).open_session():
        pass
    assert str(caught.value).endswith(f"is not a file that can be read. Give one of {', '.join(BUILDERS)}.")
    assert not (folder / "runs").exists()


def test_a_signal_while_a_stream_does_not_answer_saves_and_stops(folder: Path) -> None:
    class Signalled(Trainer):
        def on_stage(self, stage: CompleteStage) -> None:
            os.kill(os.getpid(), signal.SIGTERM)

    trainer = Signalled(*away("data.jsonl"), show=False).run()
    assert (trainer.step, trainer.finished, trainer.session.signal) == (0, False, "SIGTERM")
    assert [event["event"] for event in read_events(Path("runs/run/events.jsonl"))][-1] == "ended"


@pytest.mark.slow
def test_stopped_and_resumed_it_takes_the_same_steps(folder: Path) -> None:
    Trainer("run.toml", ["run.name=calm"], show=False).run()
    for _ in range(3):
        Stopped("run.toml", ["run.name=stopped"], show=False).run()
    assert len(losses("calm")) == 13
    assert losses("stopped") == losses("calm")
    assert weights("stopped") == weights("calm")
    said = [event["text"] for event in read_events(Path("runs/calm/events.jsonl")) if event["event"] == "notice"]
    assert said[0] == "stream web: all lanes have ended: starts over, epoch 2"
    state = json.loads((RunFolder(Path("runs/calm")).checkpoints()[-1].path / "state.json").read_text())
    assert len(state["loader"]["lanes"]["web"]["lanes"]) == 3


def test_another_past_of_the_stream_is_refused(folder: Path) -> None:
    Stopped("run.toml", show=False).run()
    with pytest.raises(ResumeError) as error:
        Trainer("run.toml", ["sources.web.shuffle_buffer=7"], show=False).run()
    assert str(error.value) == (
        "cannot resume at step 5: sources.web.shuffle_buffer was 6 and is now 7, and steps 0 to 4 have been taken. "
        "Put it back, or fork an earlier checkpoint: trivium fork runs/run --at STEP new.toml"
    )


def test_a_rehearsal_does_not_read_what_lies_between_stages(folder: Path) -> None:
    overrides = ["stages.0.steps=100000000", "stages.0.mixture={ web = 1.0 }"]
    with (folder / "table.txt").open("w") as file:
        rehearse_run(Path("run.toml"), overrides, Console(file=file, width=120), dialect=None, world_size=1)
    lines = (folder / "table.txt").read_text().splitlines()
    assert [line.split()[0] for line in lines] == ["stage", "one", "two", "tightest:", "whole"]


def test_the_rows_of_a_skipped_step_are_listed_without_reading_the_stream_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Poisoned(Trainer):
        def train_step(self, batch: Batch, now: StepSettings) -> StepStats:
            stats = super().train_step(batch, now)
            return replace(stats, skipped="poisoned") if now.step == 3 else stats

    made: list[str] = []
    open_streams = Streams.__init__

    def counted(self: Streams, *arguments: Any) -> None:
        made.append("streams")
        open_streams(self, *arguments)

    monkeypatch.setattr(Streams, "__init__", counted)
    Poisoned("run.toml", show=False).run()
    assert made == ["streams"]
    (skipped,) = [event for event in read_events(Path("runs/run/events.jsonl")) if event["event"] == "skipped"]
    rows = json.loads((Path("runs/run") / skipped["rows"]).read_text())
    assert {row["source"] for row in rows} == {"web", "code"}
    assert all(row["pieces"] for row in rows)


@pytest.mark.slow
def test_killed_anywhere_it_ends_bit_for_bit_as_one_that_was_not(folder: Path) -> None:
    command = [sys.executable, "-m", "tests.train.chaos", str(folder), "3", "3"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout.splitlines()[-1])
    assert found["kills"] == 3
    assert len(found["calm"]["steps"]) == 13
    assert found["killed"] == found["calm"]

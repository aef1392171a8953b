"""A run that freezes parts of its model, gives it new tokens and learns from a teacher: stopped, killed, refused."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.batches import TINY
from tests.support.corpus import write_source
from tests.support.scripts import ROOT
from tests.support.training import SMALL_MODEL, StoppingTrainer, events
from trivium.ask.export import export_checkpoint
from trivium.engine.base import EngineSettings
from trivium.engine.make import make_engine
from trivium.errors import PlanError, ResumeError
from trivium.model.folder import read_spec
from trivium.prove.compare import saved_bits
from trivium.run.folder import RunFolder

TEACHER = replace(TINY, layers=3, width=48, heads=3, kv_heads=3, head_dim=16, vocab=420)
CONFIG = (
    SMALL_MODEL.replace("layers = 1", "layers = 2")
    + """
vocab = 300
[checkpoint]
every = 2
keep = 20
[evaluate]
every = 3
tokens = 60
weights = "both"
[sources.web]
kind = "tokens"
path = "web"
validation = 0.2
[sources.chat]
kind = "tokens"
path = "chat"
validation = 0.2
[defaults]
seq_len = 16
batch_size = 4
average = { ema = 0.9 }
[[stages]]
name = "first"
steps = 3
mixture = { web = 1.0 }
[[stages]]
name = "frozen"
steps = 3
mixture = { web = 1.0 }
freeze = ["embedding", "layers.0"]
[[stages]]
name = "grown"
steps = 3
mixture = { chat = 1.0 }
vocab = 400
kl = { beta = 0.1 }
[[stages]]
name = "taught"
steps = 3
mixture = { chat = 0.5, web = 0.5 }
vocab = 420
freeze = ["layers.1.attention"]
distill = { path = "teacher", beta = 0.5, temperature = 2.0, top_k = 9 }
"""
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with two sources, of which one has ids that only later stages know, a teacher, and a config."""
    lengths = np.random.default_rng(0).integers(2, 14, 30)
    write_source(tmp_path / "web", [lengths.tolist()], "uint16")
    write_source(tmp_path / "chat", [[*lengths.tolist(), 390 - int(lengths.sum()) - 30]], "uint16")
    make_engine(EngineSettings(TEACHER, seed=3, device="cpu")).export(tmp_path / "teacher")
    (tmp_path / "run.toml").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*overrides: str, stop_at: int = -1) -> StoppingTrainer:
    trainer = StoppingTrainer("run.toml", overrides, show=False)
    trainer.stop_at = stop_at
    trainer.run()
    return trainer


def engine_of(step: int, name: str = "run") -> Path:
    return next(each for each in RunFolder(Path("runs") / name).checkpoints() if each.step == step).engine


@pytest.mark.usefixtures("folder")
def test_a_run_stopped_around_every_change_ends_with_the_same_bits() -> None:
    run("run.name=whole")
    for stop_at in (3, 4, 6, 7, 8, 9, 11):
        run(stop_at=stop_at)
    run()
    assert saved_bits(engine_of(12)) == saved_bits(engine_of(12, "whole"))
    assert [read_spec(engine_of(step)).vocab for step in (3, 6, 8, 9, 10, 12)] == [300, 300, 400, 400, 420, 420]
    began = [event["changes"] for event in events("stage")]
    assert began[1]["freeze"] == [[], ["embedding", "layers.0"]]
    assert began[2]["vocab"] == [300, 400]
    assert "freeze" not in began[2]  # what is frozen stays frozen
    assert began[3]["freeze"] == [["embedding", "layers.0"], ["layers.1.attention"]]
    before, after = (saved_bits(engine_of(step)) for step in (3, 6))
    kept = [name.partition("weights/")[2] for name in before if before[name] == after[name] and "weights/" in name]
    assert len(kept) == 10
    assert all(name.startswith(("embedding.", "layers.0.")) for name in kept)
    measured = {event["step"]: set(event["loss_by_source"]) for event in events("evaluated", "whole")}
    assert measured == {3: {"web"}, 6: {"web"}, 9: {"web", "chat"}, 12: {"web", "chat"}}
    export_checkpoint(Path("runs/run"), Path("out"))
    assert read_spec(Path("out")).vocab == 420


@pytest.mark.slow
@pytest.mark.parametrize(("engine", "kills"), [("torch", 16), ("jax", 3)])
def test_a_run_killed_anywhere_ends_bit_for_bit_as_one_that_was_not(folder: Path, engine: str, kills: int) -> None:
    command = [sys.executable, "-m", "tests.train.chaos", str(folder), str(kills), "5", f"engine.name={engine}"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    found: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    assert found["kills"] == kills
    assert found["calm"]["step"] == 12
    assert found["killed"] == found["calm"]


@pytest.mark.usefixtures("folder")
def test_what_changes_the_past_is_refused_and_what_changes_the_future_is_not() -> None:
    run(stop_at=8)
    for change, said in {
        "stages.1.freeze=['embedding']": 'stages[1].freeze was ["embedding", "layers.0"] and is now ["embedding"]',
        "stages.2.vocab=410": "stages[2].vocab was 400 and is now 410",
    }.items():
        with pytest.raises(ResumeError) as refusal:
            run(change)
        assert said in str(refusal.value)
    run("stages.3.freeze=[]", "stages.3.distill.beta=0.25", stop_at=10)
    (Path("teacher") / "config.json").write_text((Path("teacher") / "config.json").read_text() + " ")
    with pytest.raises(PlanError, match=r"stages\[3\]\.distill\.path.*teacher has changed since the run began. Put it"):
        run("stages.3.freeze=[]", "stages.3.distill.beta=0.25")

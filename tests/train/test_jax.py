"""Runs on the JAX engine: killed and resumed to the bit, on several devices and processes; from engine to engine."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.support.scripts import ROOT
from tests.support.training import SMALL_MODEL, losses, write_sources
from trivium.ask.export import export_checkpoint
from trivium.engine.jax.state import array_hashes
from trivium.errors import ResumeError
from trivium.run.events import read_events
from trivium.run.folder import RunFolder
from trivium.train.fork import fork_run
from trivium.train.trainer import Trainer

CONFIG = (
    SMALL_MODEL
    + """
vocab = 512
[optimizer]
lr = 0.003
grad_clip = 1.0
[checkpoint]
every = 3
[sources.web]
kind = "tokens"
path = "web"
[sources.code]
kind = "tokens"
path = "code"
[[stages]]
name = "one"
steps = 5
mixture = { web = 0.75, code = 0.25 }
seq_len = 16
batch_size = 8
[[stages]]
name = "two"
steps = 5
mixture = { code = 1.0 }
seq_len = 32
batch_size = 4
rope = { theta = 50_000 }
kl = { beta = 0.1 }
"""
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two sources and a config of two stages, the second with KL; the tests work there."""
    write_sources(tmp_path)
    (tmp_path / "run.toml").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def play(folder: Path, *command: str, devices: int = 1) -> Any:
    """What a script of forks finds; what one launch compiles the next takes from a cache."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PYTHONWARNINGS": "ignore",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
        "JAX_COMPILATION_CACHE_DIR": str(folder / "compiled"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    ran = subprocess.run(
        [sys.executable, "-m", *command], env=environment, capture_output=True, text=True, check=False, cwd=folder
    )
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout.splitlines()[-1])


OPTIMIZERS = [
    "stages.0.optimizer={ name = 'ademamix', lr = 0.003, alpha_warmup = 5, beta3_warmup = 9 }",
    "stages.1.optimizer={ name = 'muon', lr = { matrix = 0.02, rest = 0.003 }, grad_clip = 0.2 }",
]


@pytest.mark.slow
@pytest.mark.parametrize(("devices", "overrides"), [(1, []), (4, []), (2, OPTIMIZERS)])
def test_killed_at_random_points_a_run_ends_with_the_same_bits(
    folder: Path, devices: int, overrides: list[str]
) -> None:
    found = play(folder, "tests.train.chaos", str(folder), "3", "5", "engine.name=jax", *overrides, devices=devices)
    assert found["kills"] == 3
    assert found["calm"]["step"] == len(found["calm"]["steps"]) == 10
    assert found["killed"] == found["calm"]


@pytest.mark.slow
def test_two_processes_train_as_one_and_end_when_one_is_gone(folder: Path) -> None:
    found = play(folder, "tests.train.hosts", str(folder))
    codes, figures = found["codes"], found["figures"]
    assert [codes[name] for name in ("one", "two", "shared", "first half", "second half", "goes on")] == [
        [0], [0, 0], [0, 0], [0, 0], [0], [0, 0],
    ]  # fmt: skip
    for name in ("two", "parts", "shared"):
        if name != "shared":
            assert figures[name]["rows"] == figures["one"]["rows"]
        theirs, ours = (figures[each]["losses"] for each in ("one", name))
        assert list(ours.values()) == pytest.approx(list(theirs.values()), rel=1e-5)
        one, other = (figures[each]["losses of rows"] for each in ("one", name))
        assert other == pytest.approx(one, rel=1e-4)
        assert len(one) == sum(map(len, figures["one"]["rows"].values()))
    assert figures["parts"]["started"][1] == [4, 1, {"layout.shard": "2 -> 1", "world_size": "2 -> 1"}]
    assert found["written"]["two"] == found["written"]["shared"] == found["written"]["one"]
    assert len({len(row) for samples in found["written"]["one"] for row in samples}) > 2
    scores, texts = found["asked"]["one"]
    assert [set(each) for each in scores] == [{"spelling", "arc"}]
    assert scores[0]["arc"]["questions"] == 5
    assert len(texts) == 6  # of two prompts at the start, where the stages meet and at the end
    assert found["asked"]["two"] == found["asked"]["shared"] == [scores, texts]
    assert codes["killed"][1] == -9
    assert codes["killed"][0] not in (0, -9)
    assert all(code not in (0, -9) for code in codes["broken"])
    assert codes["unknown"] == [2, 2]
    assert set(found["faults"]) == {None}  # some were saved, and all are whole
    assert found["bits"]["killed"] == found["bits"]["two"]


@pytest.mark.slow
def test_a_run_goes_from_engine_to_engine_and_back(folder: Path) -> None:
    Trainer("run.toml", ["checkpoint.keep=9"], show=False).run()
    there = ["engine.name=jax", "run.name=there"]
    assert fork_run(Path("runs/run"), 6, Path("run.toml"), there) == (
        "runs/there: forked from runs/run at step 6, its weights alone, from torch to jax with a fresh optimizer. "
        "Continue with: trivium train run.toml engine.name=jax run.name=there"
    )
    # The reference of the stage comes along, in the same form.
    taken = RunFolder(Path("runs/there")).checkpoints()
    assert [(each.step, each.verify()) for each in taken] == [(5, None), (6, None)]
    lineage = RunFolder(Path("runs/there")).lineage
    assert lineage is not None
    assert (lineage["step"], lineage["engine"], lineage["optimizer"]) == (6, "torch", "fresh")
    again = ["engine.name=jax", "run.name=again"]
    assert fork_run(Path("runs/there"), 6, Path("run.toml"), again) == (
        "runs/again: forked from runs/there at step 6, its weights alone, with a fresh optimizer. "
        "Continue with: trivium train run.toml engine.name=jax run.name=again"
    )
    assert (RunFolder(Path("runs/again")).lineage or {})["optimizer"] == "fresh"
    Trainer("run.toml", there, show=False).run()
    assert list(losses("there")) == [7, 8, 9, 10]
    # The step's loss is that of the weights it begins with; the second step's is of another update.
    assert losses("there")[7] == pytest.approx(losses()[7], rel=1e-5)
    back = ["run.name=back"]
    fork_run(Path("runs/there"), 9, Path("run.toml"), back)
    Trainer("run.toml", back, show=False).run()
    assert losses("back")[10] == pytest.approx(losses("there")[10], rel=1e-5)
    with pytest.raises(ResumeError) as refusal:
        Trainer("run.toml", ["run.name=there"], show=False).run()
    engine = RunFolder(Path("runs/there")).checkpoints()[-1].engine
    assert str(refusal.value) == (
        f"{engine}: was saved by the jax engine. Put engine.name back, or fork the run: a fork continues with the "
        "weights and a fresh optimizer. As a reference give what trivium export makes of it."
    )
    Trainer("run.toml", ["run.name=init", "model={ init = 'runs/there' }"], show=False).run()
    said = [event["text"] for event in read_events(Path("runs/init/events.jsonl")) if event["event"] == "weights"]
    assert [text.partition(": ")[0] for text in said] == [f"weights from {engine}"]
    assert not Path("runs/init/.weights").exists()
    assert export_checkpoint(Path("runs/there"), Path("out")).startswith("out: step 10 of runs/there, ")
    exported = load_file("out/model.safetensors")
    assert exported["model.embed_tokens.weight"].shape == (512, 32)
    assert all(np.isfinite(array).all() for array in exported.values())
    assert array_hashes(engine).keys() >= {"weights/embedding.weight"}

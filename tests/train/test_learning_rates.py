"""Learning rates that a run is trained with, on both engines: from where it stands, by group, stretched in flight."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.corpus import write_source
from tests.support.events import steps_taken
from tests.support.training import StoppingTrainer
from trivium.errors import ResumeError, UsageError
from trivium.train.trainer import Trainer

CONFIG = """
[run]
name = "run"
[model]
layers = 1
width = 16
heads = 2
vocab = 512
[schedule]
shape = "cosine"
to = 0.1
horizon = { steps = 10 }
[engine]
device = "cpu"
[sources.web]
kind = "tokens"
path = "web"
[defaults]
mixture = { web = 1.0 }
seq_len = 8
batch_size = 2
[[stages]]
name = "general"
steps = 8
[[stages]]
name = "cool"
steps = 4
lr = { from = "here", shape = "linear", scale = { matrix = 0.5, embedding = 0.1 } }
"""
EXTEND = "schedule.extend={ at = { steps = 5 }, to = { steps = 20 } }"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A source of forty documents and a config of twelve steps in two stages."""
    write_source(tmp_path / "web", [[9] * 40], "uint16")
    (tmp_path / "run.toml").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def start(name: str, *overrides: str, stop_at: int = -1) -> Trainer:
    trainer = StoppingTrainer("run.toml", [f"run.name={name}", *overrides], show=False)
    trainer.stop_at = stop_at
    trainer.run()
    return trainer


def taken(name: str) -> dict[int, dict[str, Any]]:
    return steps_taken(Path("runs") / name / "events.jsonl")


@pytest.mark.parametrize("engine", ["torch", "jax"])
def test_a_schedule_that_is_extended_in_flight_goes_on_as_if_it_had_always_been(engine: str) -> None:
    named = f"engine.name={engine}"
    whole = start("whole", named, EXTEND)
    start("parts", named, stop_at=5)
    start("parts", named, EXTEND)
    expected, found = taken("whole"), taken("parts")
    for step in range(1, 13):
        assert expected[step]["lr"] == dict(whole.plan.settings_at(step - 1).lr)
        assert {key: found[step][key] for key in ("loss", "lr", "grad_norm")} == {
            key: expected[step][key] for key in ("loss", "lr", "grad_norm")
        }
    last = expected[12]["lr"]
    assert (last["matrix"], last["embedding"]) == pytest.approx((last["rest"] * 0.5, last["rest"] * 0.1))


def test_an_extension_of_steps_that_have_been_taken_is_refused_by_its_key() -> None:
    start("run", stop_at=7)
    with pytest.raises(ResumeError) as refusal:
        start("run", EXTEND)
    assert str(refusal.value) == (
        "cannot resume at step 7: schedule.extend.at.steps was absent and is now 5, schedule.extend.to.steps was "
        "absent and is now 20, which changes the learning rate from step 6 on, and steps 0 to 6 have been taken. "
        "Put it back, or fork an earlier checkpoint: trivium fork runs/run --at STEP new.toml"
    )
    start("run", "schedule.extend={ at = { steps = 7 }, to = { steps = 20 } }")


def test_another_scale_of_a_group_is_refused_once_a_step_was_taken_with_it() -> None:
    start("run", stop_at=8)
    start("run", "stages.1.lr.scale={ embedding = 0.2 }", stop_at=10)
    with pytest.raises(ResumeError) as refusal:
        start("run", "stages.1.lr.scale={ embedding = 0.3 }")
    assert str(refusal.value).startswith(
        "cannot resume at step 10: stages[1].lr.scale.embedding was 0.2 and is now 0.3, which changes the learning "
        "rate of embedding from step "
    )


class OwnOptimizer(Trainer):
    """AdamW of the user's own, whose groups no stage can name."""

    def optimizer(self) -> Any:
        return torch.optim.AdamW


def test_scales_by_group_are_refused_for_an_optimizer_of_ones_own() -> None:
    with pytest.raises(UsageError) as refusal:
        OwnOptimizer("run.toml", show=False)
    assert str(refusal.value) == (
        "Trainer.optimizer() returned an optimizer with groups of its own, and a stage's lr.scale names ours. "
        "Write one number for all: lr = { scale = 0.5 }."
    )
    OwnOptimizer("run.toml", ["stages.1.lr.scale=0.5"], show=False)


class OwnSchedule(Trainer):
    """A schedule by the name of its shape."""

    name = "power"

    def schedule(self) -> Any:
        return self.name


def test_a_shape_by_name_takes_the_place_of_points_and_has_what_it_needs() -> None:
    with pytest.raises(UsageError) as refusal:
        OwnSchedule("run.toml", show=False)
    assert str(refusal.value) == (
        'Trainer.schedule() returned "power", which needs exponent. '
        "Write the shape and exponent in [schedule], and return None."
    )
    (Path("run.toml")).write_text(CONFIG.replace("steps = 4\nlr", "steps = 4\n#"))
    OwnSchedule.name = "linear"
    trainer = OwnSchedule("run.toml", ["schedule={ points = [{ steps = 0, lr = 0.5 }] }"], show=False)
    assert trainer.plan.lr_multiplier(6) == 0.5 == 1 - 6 / 12

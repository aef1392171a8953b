"""What people override in a Trainer, and what they get from it."""

import json
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tests.support.corpus import write_source
from tests.support.events import steps_taken
from tests.support.training import StoppingTrainer, events
from trivium.engine.base import OptimizerSettings
from trivium.errors import PlanError, ResumeError, UsageError
from trivium.run.events import read_events
from trivium.run.folder import RunFolder
from trivium.train.fork import fork_run
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
shape = "constant"
[engine]
device = "cpu"
[evaluate]
tokens = 32
[sources.web]
kind = "tokens"
path = "web"
[[stages]]
name = "one"
steps = 6
mixture = { web = 1.0 }
seq_len = 8
batch_size = 2
"""
EVENTS = Path("runs/run/events.jsonl")
HOLDS_OUT, EVERY = "sources.web.validation=0.3", "evaluate.every=2"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a source of forty documents and a config of six steps, which holds nothing out."""
    write_source(tmp_path / "web", [[9] * 40], "uint16")
    (tmp_path / "run.toml").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def halve(step: int) -> float:
    return 0.5


def third(step: int) -> float:
    return 1 / 3


class Own(StoppingTrainer):
    """A test chooses its schedule and its optimizer."""

    shape: Callable[[int], float] | None = None
    settings: OptimizerSettings | None = None
    calls: list[str]

    def optimizer(self) -> Any:
        self.calls = [*getattr(self, "calls", []), "optimizer"]
        return self.settings

    def schedule(self) -> Any:
        self.calls.append("schedule")
        return type(self).shape


Kind = TypeVar("Kind", bound=Own)


def start(kind: type[Kind], *overrides: str, stop_at: int = -1) -> Kind:
    trainer = kind("run.toml", overrides, show=False)
    trainer.stop_at = stop_at
    trainer.run()
    return trainer


class Halved(Own):
    shape = staticmethod(halve)


class Thirds(Own):
    shape = staticmethod(third)


def test_an_own_optimizer_and_schedule_are_asked_for_once(folder: Path) -> None:
    trainer = start(Halved)
    assert trainer.calls == ["optimizer", "schedule"]
    assert {step["lr_multiplier"] for step in steps_taken(EVENTS).values()} == {0.5}


@pytest.mark.parametrize(
    ("method", "returned", "message"),
    [
        ("schedule", "cosnie", 'Trainer.schedule() returned "cosnie", which is not known. Did you mean "cosine"?'),
        ("optimizer", "moun", 'Trainer.optimizer() returned "moun", which is not known. Did you mean "muon"?'),
        ("schedule", 5, "Trainer.schedule() returned 5. Return a shape's name, a function of the step or None."),
        (
            "optimizer",
            0.1,
            (
                "Trainer.optimizer() returned 0.1. Return a name, OptimizerSettings, a torch.optim.Optimizer class, "
                "an optax transformation, a function or None."
            ),
        ),
    ],
)
def test_what_is_neither_a_name_nor_usable_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, method: str, returned: object, message: str
) -> None:
    monkeypatch.setattr(Trainer, method, lambda self: returned)
    with pytest.raises(UsageError) as error:
        Trainer("run.toml", show=False)
    assert str(error.value) == message


def test_another_own_schedule_is_refused_by_name(folder: Path) -> None:
    start(Halved, stop_at=3)
    with pytest.raises(ResumeError) as error:
        start(Thirds)
    assert str(error.value) == (
        'cannot resume at step 3: Trainer.schedule was "halve" and is now "third", and steps 0 to 2 have been taken. '
        'Put the method back, or start a new run from the checkpoint: model.init = "runs/run".'
    )
    assert start(Halved).finished


def test_a_run_with_an_own_schedule_is_forked_and_its_trainer_is_compared_when_the_fork_resumes(folder: Path) -> None:
    start(Halved, stop_at=3)
    fork_run(Path("runs/run"), 3, Path("run.toml"), ["run.name=fork"])
    with pytest.raises(ResumeError, match=r'Trainer\.schedule was "halve" and is now "third"'):
        start(Thirds, "run.name=fork")
    assert start(Halved, "run.name=fork").finished


def test_other_own_settings_of_the_optimizer_are_refused_by_key(folder: Path) -> None:
    class First(Own):
        settings = OptimizerSettings(betas=(0.9, 0.99))

    class Second(Own):
        settings = OptimizerSettings(betas=(0.8, 0.99))

    start(First, stop_at=2)
    with pytest.raises(ResumeError) as error:
        start(Second)
    assert "Trainer.optimizer.betas was [0.9, 0.99] and is now [0.8, 0.99]" in str(error.value)
    assert start(First).finished


class Counting(Own):
    """Keeps state of its own: how many tokens it has seen."""

    seen = 0

    def on_step(self, step: int, stats: Any) -> None:
        self.seen += stats.loss_tokens
        self.log(seen=self.seen)
        super().on_step(step, stats)

    def state(self) -> dict[str, Any]:
        return {"seen": self.seen}

    def load_state(self, state: dict[str, Any]) -> None:
        self.seen = state["seen"]


def test_own_state_goes_through_the_checkpoint_and_own_figures_into_the_events(folder: Path) -> None:
    whole = start(Counting, "run.name=whole")
    stopped = start(Counting, stop_at=3)
    resumed = start(Counting)
    assert 0 < stopped.seen < resumed.seen == whole.seen
    figures = [step["figures"] for step in steps_taken(EVENTS).values()]
    assert figures == [step["figures"] for step in steps_taken(Path("runs/whole/events.jsonl")).values()]
    assert figures[-1] == {"seen": float(whole.seen)}


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ({"pair": (1, 2)}, "JSON would change it. Use lists for tuples, and texts for keys."),
        (None, "returned None. Return a dict, or {} for nothing."),
        (
            {"set": {1}},
            "Object of type set is not JSON serializable. Return a dict of numbers, texts, lists and dicts.",
        ),
    ],
)
def test_own_state_that_would_not_come_back_as_it_was_is_refused_before_the_first_step(
    folder: Path, returned: Any, message: str
) -> None:
    class Wrong(Own):
        def state(self) -> dict[str, Any]:
            return returned  # type: ignore[no-any-return]

    with pytest.raises(UsageError) as error:
        start(Wrong)
    assert str(error.value) == f"Trainer.state(): {message}"
    assert not any(event["event"] == "step" for event in read_events(EVENTS)) if EVENTS.exists() else True


def test_own_state_may_hold_what_is_not_a_number(folder: Path) -> None:
    class Unknown(Own):
        def state(self) -> dict[str, Any]:
            return {"best": float("nan")}

    assert start(Unknown).finished


def test_a_checkpoint_saved_in_a_hook_is_that_of_the_whole_step(folder: Path) -> None:
    class Saving(Own):
        def on_step(self, step: int, stats: Any) -> None:
            if step == 2:
                self.save()

    start(Saving)
    state = next(each for each in RunFolder(Path("runs/run")).checkpoints() if each.step == 3).state()
    assert len(state["guard"]["losses"]) == 3


def test_a_save_that_is_under_way_when_a_hook_fails_is_finished_and_reported(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = RunFolder.commit

    def slow(self: RunFolder, *arguments: Any) -> Any:
        time.sleep(0.3)
        return commit(self, *arguments)

    class Failing(Own):
        def on_step(self, step: int, stats: Any) -> None:
            if step == 2:
                raise RuntimeError("a hook failed")

    monkeypatch.setattr(RunFolder, "commit", slow)
    with pytest.raises(RuntimeError, match="a hook failed"):
        start(Failing, "checkpoint.every=2")
    assert [event["step"] for event in read_events(EVENTS) if event["event"] == "saved"] == [2]
    assert not [thread for thread in threading.enumerate() if thread.name == "trivium-saver"]


def test_a_save_in_the_background_keeps_the_figures_of_its_own_step(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit, begun = RunFolder.commit, threading.Event()

    def late(self: RunFolder, step: int, *arguments: Any) -> Any:
        if step == 2:
            begun.wait(10)
        return commit(self, step, *arguments)

    class Waiting(Own):
        def on_step(self, step: int, stats: Any) -> None:
            if step == 3:
                begun.set()

    monkeypatch.setattr(RunFolder, "commit", late)
    start(Waiting, HOLDS_OUT, "evaluate.every=1", "checkpoint.every=2", "checkpoint.keep=9")
    evaluated = {event["step"]: event["loss"] for event in read_events(EVENTS) if event["event"] == "evaluated"}
    state = next(each for each in RunFolder(Path("runs/run")).checkpoints() if each.step == 2).state()
    assert state["best"] == {"validation loss": min(evaluated[1], evaluated[2])}


def test_nothing_that_only_explains_ends_a_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ValueError("no such row")

    class Poisoned(Own):
        def train_step(self, batch: Any, now: Any) -> Any:
            self.log(poison=1.0)
            stats = super().train_step(batch, now)
            return replace(stats, skipped="poisoned") if now.step == 2 else stats

    monkeypatch.setattr("trivium.train.loop.origins_of", fail)
    assert start(Poisoned).finished
    events = list(read_events(EVENTS))
    (skipped,) = [event for event in events if event["event"] == "skipped"]
    assert (skipped["rows"], skipped["figures"]) == (None, {"poison": 1.0})
    assert any("are not written down: no such row" in event.get("text", "") for event in events)


def test_there_is_no_batch_after_the_last_step_nor_of_documents_that_nobody_holds_out(folder: Path) -> None:
    trainer = Trainer("run.toml", show=False)
    for step in (6, 7):
        with pytest.raises(PlanError, match=f"there is no step {step}: the run has 6 steps, from 0 to 5"):
            trainer.batch(step)
    assert trainer.batch(5).num_rows == 2
    with pytest.raises(PlanError, match="there is no step 6"):
        trainer.batch(6)
    assert trainer.batch(2).num_rows == 2
    with pytest.raises(UsageError) as error:
        trainer.batch(0, "validation")
    assert str(error.value).startswith('batch: split is "validation", but no source holds documents out.')
    assert Trainer("run.toml", [HOLDS_OUT], show=False).batch(0, "validation").num_rows > 0


class Scored(Own):
    def evaluator(self) -> Any:
        return lambda trainer: {"double": 2.0 * trainer.step}


@pytest.mark.parametrize("overrides", [(), (HOLDS_OUT,)])
def test_an_evaluator_is_asked_at_every_evaluation_whether_documents_are_held_out_or_not(
    folder: Path, overrides: tuple[str, ...]
) -> None:
    trainer = start(Scored, EVERY, *overrides)
    evaluated = [event for event in read_events(EVENTS) if event["event"] == "evaluated"]
    assert [(event["step"], event["scores"]) for event in evaluated] == [
        (2, {"double": 4.0}),
        (4, {"double": 8.0}),
        (6, {"double": 12.0}),
    ]
    assert all((event["loss"] is None) == (not overrides) for event in evaluated)
    assert ("validation loss" in trainer.session.best) == bool(overrides)


def test_a_checkpoint_keeps_the_last_evaluation_as_figures(folder: Path) -> None:
    start(Own, HOLDS_OUT, EVERY, stop_at=3)
    (checkpoint,) = RunFolder(Path("runs/run")).checkpoints()
    kept = json.loads((checkpoint.path / "state.json").read_text())["validation"]
    (evaluated,) = [event for event in read_events(EVENTS) if event["event"] == "evaluated"]
    timeless = {key: value for key, value in evaluated.items() if key not in ("event", "time")} | {"seconds": 0.0}
    assert kept == timeless  # so that two runs of the same steps keep the same
    resumed = Own("run.toml", [HOLDS_OUT, EVERY], show=False)
    with resumed.open_session() as session:
        resumed.load()
        assert session.last_evaluation is not None
        assert session.last_evaluation.loss == kept["loss"]


def test_saving_moves_nothing(folder: Path) -> None:
    trainer = Own("run.toml", show=False)
    with trainer.open_session():
        trainer.load()
        trainer.loader.step = 4
        trainer.save()
        assert trainer.loader.step == 4
    (checkpoint,) = RunFolder(Path("runs/run")).checkpoints()
    assert checkpoint.state()["loader"]["step"] == 0


def test_a_trainer_that_was_not_started_says_so(folder: Path) -> None:
    with pytest.raises(UsageError, match="the trainer has not been started"):
        _ = Trainer("run.toml", show=False).engine


def test_a_run_with_larger_passes_than_its_bases_says_so(folder: Path) -> None:
    start(Own, "engine.micro_batch_size=1")
    shape = ("model.layers=", "model.width=", "model.heads=")  # the base's
    start(Own, "run.name=other", "model.init=runs/run", *shape, "engine.micro_batch_size=2")
    (passes,) = (event["text"] for event in events("notice", "other"))
    (weights,) = events("weights", "other")
    assert weights["text"].startswith("weights from runs/run/")
    assert weights["left_out"] == {"optimizer state": "model.init_optimizer is false"}
    assert passes.startswith("engine.micro_batch_size: is 2, and runs/run at step 6 was trained with 1:")

"""A run from its first step to its last, stopped and resumed in every way."""

import io
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from rich.console import Console

from tests.support.corpus import write_source
from tests.support.events import steps_taken
from tests.support.scripts import ROOT
from tests.support.training import StoppingTrainer, losses, train
from trivium.ask.export import export_checkpoint
from trivium.config.load import load_config
from trivium.config.schema import Config
from trivium.engine.torch.engine import TorchEngine
from trivium.errors import ConfigError, ResumeError, UsageError
from trivium.rows.batch import IGNORED, Batch
from trivium.run.events import Evaluated, read_events
from trivium.run.folder import RunFolder
from trivium.train.rehearse import rehearse_run
from trivium.train.trainer import Trainer


def test_a_stage_of_n_steps_takes_n_steps_and_all_changes_come_with_its_first(folder: Path) -> None:
    trainer = train()
    steps = steps_taken(Path("runs/run/events.jsonl"))
    assert list(steps) == list(range(1, 20))
    stages = [steps[step]["stage"] for step in steps]
    assert stages == ["one"] * 6 + ["two"] * 5 + ["three"] * 4 + ["four"] * 4
    for step, event in steps.items():
        planned = trainer.plan.settings_at(step - 1)
        assert event["lr_multiplier"] == planned.lr_multiplier
        assert event["tokens"] == planned.batch_size * planned.seq_len
    began = [event for event in read_events(Path("runs/run/events.jsonl")) if event["event"] == "stage"]
    assert [(event["step"], event["name"]) for event in began] == [(0, "one"), (6, "two"), (11, "three"), (15, "four")]
    assert began[1]["changes"] == {
        "seq_len": [16, 32],
        "batch_size": [8, 4],
        "loss_weight": [None, {"code": 0.5}],
        "rope": [{"theta": 10_000.0}, {"theta": 50_000.0}],
        "mixture": [{"code": 0.25, "web": 0.75}, {"code": 0.5, "web": 0.5}],
    }


def test_boundaries_the_last_ones_and_the_final_checkpoint_are_kept(folder: Path) -> None:
    train()
    assert [checkpoint.step for checkpoint in RunFolder(Path("runs/run")).checkpoints()] == [6, 11, 15, 18, 19]


class Interrupted(Trainer):
    """Told to stop, or broken off, between the last step of its second stage and the evaluation of that stage."""

    breaks_off = False

    def on_step(self, step: int, stats: object) -> None:
        self.stopping = step == 10 and not self.breaks_off

    def evaluate(self) -> Evaluated | None:
        if self.step == 11 and self.breaks_off:
            raise KeyboardInterrupt
        return super().evaluate()


class BrokenOff(Interrupted):
    breaks_off = True


@pytest.mark.parametrize("kind", [Interrupted, BrokenOff])
def test_the_evaluation_after_a_stages_last_step_outlives_an_interruption(folder: Path, kind: type[Trainer]) -> None:
    def evaluations(name: str) -> dict[tuple[int, str], float]:
        """By step and stage: where steps are taken again, so is an evaluation between them."""
        events = read_events(folder / "runs" / name / "events.jsonl")
        return {(each["step"], each["stage"]): each["loss"] for each in events if each["event"] == "evaluated"}

    overrides = ["checkpoint.every=100"]
    Trainer("run.toml", ["run.name=whole", *overrides], show=False).run()
    with suppress(KeyboardInterrupt):
        kind("run.toml", overrides, show=False).run()
    assert (11, "two") not in evaluations("run")
    Trainer("run.toml", overrides, show=False).run()
    assert evaluations("run") == evaluations("whole")
    Trainer("run.toml", overrides, show=False).run()
    assert evaluations("run") == evaluations("whole")


def test_a_run_that_is_finished_has_nothing_more_to_do(folder: Path) -> None:
    train()
    before = losses()
    trainer = train()
    assert trainer.finished
    assert losses() == before


@pytest.mark.slow
def test_the_loss_does_not_depend_on_the_micro_batch(folder: Path) -> None:
    train("run.name=whole")
    train(
        "run.name=single", "engine.micro_batch_size=1", "stages.1.engine={ recompute = 'full', micro_batch_size = 2 }"
    )
    whole, single = losses("whole"), losses("single")
    assert max(abs(whole[step] - single[step]) for step in whole) < 1e-5


OWN_OPTIMIZERS = [
    "optimizer.skip={ deviations = 0.5, steps = 4 }",
    "guard.max_consecutive_skips=19",
    "stages.0.optimizer={ name = 'ademamix', lr = 0.003, alpha_warmup = 5, beta3_warmup = 9 }",
    "stages.1.optimizer={ grad_clip = 0.2, weight_decay = 0.0, betas = [0.8, 0.9] }",
    "stages.3.optimizer={ name = 'muon', lr = { matrix = 0.02, rest = 0.003 } }",
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kills", "overrides"),
    [
        (20, ["optimizer.name=adamw"]),
        (4, ["optimizer.name=muon", "optimizer.lr={ matrix = 0.02, rest = 0.003 }"]),
        (2, ["engine.compile=true"]),
        (6, OWN_OPTIMIZERS),
    ],
    ids=["adamw", "muon", "compiled", "optimizers by stage"],
)
def test_a_run_killed_anywhere_ends_bit_for_bit_as_one_that_was_not(
    folder: Path, kills: int, overrides: list[str]
) -> None:
    command = [sys.executable, "-m", "tests.train.chaos", str(folder), str(kills), "7", *overrides]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout.splitlines()[-1])
    assert found["kills"] == kills
    assert found["calm"]["step"] == 19
    skips = overrides is OWN_OPTIMIZERS  # some of its steps, which are not among those taken
    assert (len(found["calm"]["steps"]) < 19) == skips
    assert found["killed"] == found["calm"]


def test_the_past_is_fixed_and_the_future_is_open(folder: Path) -> None:
    stop_after(8)
    with pytest.raises(ResumeError) as error:
        train("stages.0.mixture={ web = 0.7, code = 0.3 }")
    assert str(error.value) == (
        'cannot resume at step 8: stages[0].mixture.code was "0.25" and is now "0.3", and steps 0 to 7 have been '
        "taken. Put it back, or fork an earlier checkpoint: trivium fork runs/run --at STEP new.toml"
    )
    own = "stages.0.engine.recompute=selective"
    train("stages.3.seq_len=8", "engine.micro_batch_size=2", "checkpoint.every=100", own)
    started = [event for event in read_events(Path("runs/run/events.jsonl")) if event["event"] == "started"][-1]
    assert started["step"] == 8
    assert started["changes"] == {
        "checkpoint.every.steps": "3 -> 100",
        "engine.micro_batch_size": '"absent" -> 2',
        "stages[0].engine.recompute": '"absent" -> "selective"',
        "stages[3].seq_len": "16 -> 8",
    }


def test_a_stage_to_come_may_have_another_optimizer_and_a_stage_taken_may_not(folder: Path) -> None:
    stop_after(8, "stages.1.optimizer={ grad_clip = 0.2 }")
    for overrides, key in (
        (("stages.1.optimizer={ grad_clip = 0.1 }",), "stages[1].optimizer.grad_clip was 0.2 and is now 0.1"),
        ((), "stages[1].optimizer.grad_clip was 0.2 and is now absent"),
        (("stages.1.optimizer={ grad_clip = 0.2 }", "optimizer.weight_decay=0.0"), "optimizer.weight_decay was 0.1"),
        (("stages.1.optimizer={ name = 'muon', lr = 0.02, grad_clip = 0.2 }",), "stages[1].reset_optimizer was false"),
    ):
        with pytest.raises(ResumeError, match=re.escape(f"cannot resume at step 8: {key}")):
            train(*overrides)
    # What the run has taken is written where it was taken, so that the run's own settings are free for the rest.
    moved = "{ grad_clip = 1.0 }", "{ grad_clip = 0.2 }", "{ name = 'muon', lr = { matrix = 0.02, rest = 0.003 } }"
    train("optimizer.grad_clip=0.5", *(f"stages.{number}.optimizer={each}" for number, each in enumerate(moved)))
    began = [event for event in read_events(Path("runs/run/events.jsonl")) if event["event"] == "stage"]
    assert began[-2]["changes"]["optimizer.name"] == ["adamw", "muon"]
    assert began[-2]["changes"]["optimizer's state"] == ["kept", "fresh"]
    assert not any(key.startswith("optimizer") for key in began[-1]["changes"])


def stop_after(steps: int, *overrides: str) -> None:
    """A run that is told to stop after a number of steps."""

    class Stopped(Trainer):
        def on_step(self, step: int, stats: object) -> None:
            self.stopping = step + 1 == steps

    trainer = Stopped("run.toml", overrides, show=False).run()
    assert trainer.step == steps


def test_a_boundary_where_a_run_was_stopped_has_the_state_of_one_that_went_on(folder: Path) -> None:
    """No stage asks for an evaluation at step 15, so that nothing but the state tells of the stage's end."""
    train("run.name=whole")
    stop_after(15, "run.name=parts")
    train("run.name=parts")
    whole, parts = (RunFolder(Path("runs") / name).checkpoint("step-00000015").state() for name in ("whole", "parts"))
    assert whole["evaluated_end"] == 15
    for state in (whole, parts):
        del state["meter"]["training_seconds"], state["config"]["run"]
    assert parts == whole


SHORTER = (1, 5, 4), (2, 4, 1), (3, 4, 1)
WSD = "schedule.shape=wsd", "schedule.decay={ fraction = 0.4 }"


@pytest.mark.parametrize(
    ("before", "after", "keys", "kept"),
    [
        ((), ("stages.3.steps=40",), "stages[3].steps was 4 and is now 40", ("schedule.horizon={ steps = 19 }",)),
        (
            WSD,
            (*WSD, *(f"stages.{index}.steps={now}" for index, _, now in SHORTER)),
            ", ".join(f"stages[{index}].steps was {was} and is now {now}" for index, was, now in SHORTER),
            ("schedule.horizon={ steps = 19 }", "schedule.decay={ steps = 3 }"),
        ),
        ((), ("schedule.to=0.5",), "schedule.to was absent and is now 0.5", ()),
    ],
)
def test_another_learning_rate_is_refused_by_key_with_what_keeps_the_past(
    folder: Path, before: tuple[str, ...], after: tuple[str, ...], keys: str, kept: tuple[str, ...]
) -> None:
    stop_after(9, *before)
    with pytest.raises(ResumeError) as error:
        train(*after)
    message = str(error.value)
    assert message.startswith(f"cannot resume at step 9: {keys}, which changes the learning rate from step ")
    written = " or ".join(each.replace("=", " = ", 1) for each in kept)
    advice = f"Put it back, or write {written}, which keeps the rates of the steps taken."
    if not kept:
        advice = "Put it back, or fork an earlier checkpoint: trivium fork runs/run --at STEP new.toml"
    assert message.endswith(f" on, and steps 0 to 8 have been taken. {advice}")
    if kept:
        assert train(*after, kept[-1]).finished


def test_a_schedule_that_keeps_the_past_and_ends_at_0_is_advised_with_a_warning(folder: Path) -> None:
    longer = "stages.2.steps=40"
    stop_after(9)
    with pytest.raises(ResumeError) as error:
        train(longer)
    kept = "schedule.horizon = { steps = 19 }"
    assert str(error.value).endswith(
        f"Put it back, or write {kept}, which keeps the rates of the steps taken. With {kept} the learning rate is 0 "
        "from step 19 on: stretch the rest of it, schedule.extend = { at = { steps = 9 }, to = { steps = 55 } }, "
        'or put those steps into a stage with its own rate, lr = { shape = "linear" }.'
    )


def test_another_validation_split_is_refused_by_its_key_and_not_as_other_files(folder: Path) -> None:
    stop_after(8)
    with pytest.raises(ResumeError) as error:
        train("sources.web.validation=0.3")
    assert str(error.value) == (
        "cannot resume at step 8: sources.web.validation was 0.2 and is now 0.3, and steps 0 to 7 have been taken. "
        "Put it back. To evaluate on more documents, add a source with validation_only = true."
    )


def test_sources_whose_content_changed_are_refused_by_name(folder: Path) -> None:
    stop_after(8)
    write_source(folder / "code", [[5] * 31], "uint16")
    with pytest.raises(ResumeError) as error:
        train()
    assert str(error.value) == (
        "cannot resume at step 8: sources changed since the checkpoint: code (was 20 documents, is 31). "
        "Put the files back, or give run.name another name."
    )


def test_a_dry_run_leaves_nothing_behind(folder: Path) -> None:
    trainer = train(dry_run=True)
    assert trainer.finished
    assert not (folder / "runs").exists()


def test_people_may_override_small_methods(folder: Path) -> None:
    class Mine(Trainer):
        def schedule(self) -> Any:
            return lambda step: 1.0 / (step + 1)

        def evaluator(self) -> Any:
            return lambda trainer: {"score": float(trainer.step)}

    Mine("run.toml", show=False).run()
    events = list(read_events(Path("runs/run/events.jsonl")))
    assert [event["lr_multiplier"] for event in events if event["event"] == "step"] == [1 / n for n in range(1, 20)]
    scored = [event for event in events if event["event"] == "evaluated"]
    assert scored
    assert all(event["scores"] == {"score": event["step"]} for event in scored)


class Momentum(torch.optim.Optimizer):
    """An optimizer of a user's own: keeps a tensor and a plain number of each parameter."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                state["count"] = state.get("count", 0) + 1
                state["mean"] = 0.9 * state.get("mean", 0.0) + parameter.grad
                parameter -= group["lr"] * state["mean"] / state["count"] ** 0.5


class WithMomentum(StoppingTrainer):
    def optimizer(self) -> Any:
        return lambda named: Momentum([parameter for _, parameter in named], lr=0.02)


@pytest.mark.slow
def test_an_optimizer_of_ones_own_follows_the_schedule_and_resumes_exactly(folder: Path) -> None:
    whole = WithMomentum("run.toml", ["run.name=whole"], show=False).run()
    stopped = WithMomentum("run.toml", ["run.name=parts"], show=False)
    stopped.stop_at = 9
    stopped.run()
    parts = WithMomentum("run.toml", ["run.name=parts"], show=False).run()
    assert losses("parts") == losses("whole")
    assert (whole.step, stopped.step, parts.step) == (19, 9, 19)
    (group,) = whole.engine.optimizers.each[0].param_groups  # type: ignore[attr-defined]
    assert group["lr"] == pytest.approx(0.02 * whole.plan.lr_multiplier(18))


def test_a_run_starts_from_the_weights_of_another(folder: Path) -> None:
    train("run.name=base")
    train("run.name=more", "model={ init = 'runs/base', vocab = 512 }")
    assert losses("more")[1] < losses("base")[1]
    (said,) = [event for event in read_events(Path("runs/more/events.jsonl")) if event["event"] == "weights"]
    assert said["text"].startswith("weights from runs/base/checkpoints/step-00000019/engine: ")
    assert said["added"] == {"optimizer state": "fresh"}


def test_a_config_object_trains_as_its_file_does(folder: Path) -> None:
    config: Config = load_config("run.toml", ["run.name=object"])
    Trainer(config, show=False).run()
    train("run.name=file")
    assert losses("object") == losses("file")


def test_a_rehearsal_goes_through_every_stage_and_leaves_nothing(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rehearse_run(Path("run.toml"), [], Console(width=120), dialect=None, world_size=1)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["stage", "one", "two", "three", "four", "tightest:", "whole"]
    assert sorted(path.name for path in folder.iterdir()) == ["code", "run.toml", "web"]


def test_a_rehearsal_saves_where_all_ranks_see_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks may be on many machines: what rank 0 alone has, such as its own temporary folder, is not seen by all."""
    saved: list[Path] = []
    save = TorchEngine.save

    def noted(self: TorchEngine, to: Path, *, background: bool = True) -> Any:
        saved.append(to)
        return save(self, to, background=background)

    monkeypatch.setattr(TorchEngine, "save", noted)
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    rehearse_run(Path("run.toml"), [], Console(file=io.StringIO()), dialect=None, world_size=1)
    assert len(saved) == 4
    assert all(to.parent.name.startswith(".dry-run-") for to in saved)


def test_an_exported_checkpoint_is_a_hugging_face_model_with_the_same_loss(folder: Path) -> None:
    trainer = train("stages.3.seq_len=16")
    said = export_checkpoint(Path("runs/run"), Path("out"))
    assert said.startswith("out: step 19 of runs/run, ")
    model = transformers.AutoModelForCausalLM.from_pretrained("out")
    batch = trainer.loader.batch(18)
    row = int(np.argmax((batch.segments == 0).sum(axis=1)))
    length = int((batch.segments[row] == 0).sum())
    tokens = torch.from_numpy(batch.tokens[row : row + 1, :length].astype(np.int64))
    with torch.no_grad():
        loss = model(tokens, labels=tokens).loss.item()
    arrays = (batch.tokens, batch.targets, batch.segments, batch.positions)
    cut = [np.ascontiguousarray(array[row : row + 1, :length]) for array in arrays]
    cut[1][0] = [*cut[0][0, 1:], IGNORED]  # the stage's goldfish mask drops some
    one = Batch(cut[0], cut[1], cut[2], cut[3], batch.source[row : row + 1], batch.sources)
    figures = trainer.engine.evaluate(one)
    assert loss == pytest.approx(figures.nats / figures.tokens, rel=1e-4)
    with pytest.raises(UsageError) as error:
        export_checkpoint(Path("runs/run"), Path("out"))
    assert str(error.value) == "out: exists. Give a folder that does not exist yet."


@pytest.mark.slow
def test_signals_finish_the_step_save_and_end_with_a_code_of_their_own(folder: Path) -> None:
    command = [sys.executable, "-m", "trivium", "train", "run.toml", "stages.3.steps=100000", "schedule={}"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("step 20 "):
                process.send_signal(signal.SIGTERM)
                break
        rest = process.stdout.read()
    assert process.returncode == 3
    assert "SIGTERM: the step is finished, a checkpoint comes next" in rest
    last = RunFolder(Path("runs/run")).checkpoints()[-1]
    assert last.step == max(steps_taken(Path("runs/run/events.jsonl")))


def test_a_launch_may_end_before_a_stage_that_needs_other_ranks(folder: Path) -> None:
    train("run.name=whole")
    other = "stages.three.engine={ context = 3 }"
    with pytest.raises(ConfigError, match="for this stage, and end this launch before it with --until three"):
        train(other)
    assert train(other, until="three").step == 11
    evaluated = [event["step"] for event in read_events(Path("runs/run/events.jsonl")) if event["event"] == "evaluated"]
    assert evaluated[-1] == 11, "stage two is evaluated by the ranks that trained it"
    train()
    assert losses() == losses("whole")


def test_a_stage_that_begins_tells_what_it_changes_in_the_engine(folder: Path) -> None:
    train("stages.two.engine={ micro_batch_size = 2, recompute = 'full' }", until=7)
    began = [event for event in read_events(Path("runs/run/events.jsonl")) if event["event"] == "stage"]
    assert began[-1]["changes"]["engine"] == [{}, {"recompute": "full", "micro_batch_size": 2}]

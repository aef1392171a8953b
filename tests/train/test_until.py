"""Stages that end on a figure: decided once, kept, and the same run again after any stop, from any copy of it."""

import json
import shutil
from pathlib import Path

import pytest

from tests.support.arc import write_arc
from tests.support.training import SMALL_MODEL, WEB_AND_CODE, events, losses, train, write_sources
from tests.support.two_ranks import on_two_ranks
from trivium.engine.base import StepStats
from trivium.errors import ResumeError
from trivium.prove.compare import Comparison, compare_checkpoints, compare_figures
from trivium.run.decisions import BatchResized, StageEnded, read_decisions
from trivium.run.folder import RunFolder
from trivium.run.listing import list_runs
from trivium.train.fork import fork_run
from trivium.train.trainer import Trainer

CONFIG = (
    SMALL_MODEL
    + """
vocab = 512
[optimizer]
lr = 0.003
[schedule]
shape = "cosine"
warmup = { steps = 2 }
[checkpoint]
every = 1
keep = 99
[evaluate]
every = 3
tokens = 200
"""
    + WEB_AND_CODE
    + """
[[stages]]
name = "one"
until = { validation = "web", below = 5.9, at_most = { steps = 20 } }
mixture = { web = 0.75, code = 0.25 }
seq_len = 16
batch_size = 8
average = { ema = 0.9 }
[[stages]]
name = "two"
steps = 5
mixture = { web = 0.5, code = 0.5 }
fade = { steps = 2 }
seq_len = 32
batch_size = 4
kl = { beta = 0.1 }
[[stages]]
name = "three"
steps = 3
mixture = { code = 1.0 }
seq_len = 16
batch_size = 8
start_from = "average"
lr = { shape = "linear", from = "here" }
"""
)
NEVER = "stages.0.until.below=0.1"
LENGTH_TAKEN = ("stages.0.until=", "stages.0.steps=9")
SCORED = (
    SMALL_MODEL
    + """
max_seq_len = 128
[tokenizer]
kind = "bytes"
[sources.spelling]
kind = "chat"
task = "spelling"
size = 60
[evaluate]
tasks = ["counting", { task = "arc", path = "arc" }]
tasks_every = 2
questions = 8
max_new_tokens = 4
weights = "both"
[defaults]
seq_len = 64
batch_size = 4
[[stages]]
name = "never"
steps = 5
until = { score = "counting", at_least = 0.9 }
average = { ema = 0.9 }
[[stages]]
name = "soon"
until = { score = "arc", at_least = 0.1, at_most = "4k" }
"""
)
TRAINS = """
import sys
from tests.support.training import train
for stop in sys.argv[1:]:
    trainer = train(until=stop or None)
    print(trainer.step, [(stage.start, stage.end) for stage in trainer.plan.stages], trainer.decisions)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two sources and a config of three stages, the first of which ends on a figure; the tests work there."""
    write_sources(tmp_path)
    (tmp_path / "run.toml").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def differences(calm: str, other: str) -> list[str]:
    """Where the checkpoints that both runs have differ: tensors bit by bit, and the run's state."""
    found = Comparison()
    whole, parts = (RunFolder(Path("runs", name)) for name in (calm, other))
    both = {each.step for each in whole.checkpoints()} & {each.step for each in parts.checkpoints()}
    assert len(both) > 2
    for step in sorted(both):
        compare_checkpoints(found, *(folder.checkpoint(f"step-{step:08}") for folder in (whole, parts)))
    compare_figures(found, whole.events, parts.events)
    assert found.tensors > 0
    return found.differences


def lose_after(run: str, step: int) -> None:
    """As a kill would leave a run whose last checkpoint is of this step."""
    for checkpoint in RunFolder(Path("runs", run)).checkpoints():
        if checkpoint.step > step:
            shutil.rmtree(checkpoint.path)


def ends_at(run: str = "run") -> int:
    (decision,) = read_decisions(Path("runs", run, "decisions.jsonl"))
    assert isinstance(decision, StageEnded)
    return decision.step


@pytest.mark.parametrize("engine", ["torch", "jax"])
def test_a_stage_ends_on_its_figure_and_stops_and_lost_steps_change_nothing(folder: Path, engine: str) -> None:
    own = (f"engine.name={engine}", *(("stages.0.until.below=6.0",) if engine == "jax" else ()))
    calm = train("run.name=calm", *own)
    end = ends_at("calm")
    assert 3 < end < 20
    assert [(stage.start, stage.end) for stage in calm.plan.stages] == [(0, end), (end, end + 5), (end + 5, end + 8)]
    assert max(losses("calm")) == end + 8
    for stop in (end - 1, end, end + 1, "three"):  # before the decision, at it, after it
        train(*own, until=stop)
    train(*own)
    assert differences("calm", "run") == []
    lose_after("run", end - 2)
    train(*own)  # what was decided is there already
    assert differences("calm", "run") == []
    lose_after("run", end - 2)
    Path("runs/run/decisions.jsonl").unlink()
    train(*own)  # and is decided again
    assert differences("calm", "run") == []
    assert ends_at() == end


def test_the_past_stays_as_it_was_and_later_stages_have_the_rates_that_were_planned(folder: Path) -> None:
    longest = train(NEVER, "run.name=longest").plan
    plan = train().plan
    end = ends_at()
    rates = [plan.lr_multiplier(step) for step in range(plan.total_steps)]
    assert rates[:end] == [longest.lr_multiplier(step) for step in range(end)]
    assert rates[end : end + 5] == [longest.lr_multiplier(step) for step in range(20, 25)]
    assert rates[end + 5] == longest.lr_multiplier(25)
    assert losses()[end] == losses("longest")[end]
    assert plan.longest_steps == longest.total_steps == 28
    assert plan.record(end) == longest.record(end)
    assert [notice["text"] for notice in events("notice", "longest")] == [
        "stage one ends after 20 steps, its longest: no evaluation had validation loss of web below 0.1"
    ]


def test_the_run_says_why_and_its_files_have_the_decision(folder: Path) -> None:
    train()
    (told,) = events("ended_early")
    measured = {event["step"]: event["loss_by_source"]["web"] for event in events("evaluated")}
    assert told["step"] == 9
    assert told["figure"] == measured[9] < 5.9 <= measured[6]
    assert (told["stage"], told["longest"], told["total_steps"]) == ("one", 20, 17)
    plan = json.loads(Path("runs/run/plan.json").read_text())
    assert plan["total_steps"] == 17
    assert plan["decisions"] == ["at step 9: the stage ends, with validation loss of web below 5.9 (5.884)"]
    assert plan["stages"][0]["until"] == "ended at step 9 of 20 with validation loss of web below 5.9 (5.884)"
    (state,) = list_runs(Path("runs"))
    assert (state.state, state.total_steps) == ("finished", 17)


def test_config_and_decisions_give_the_run_again_whatever_is_measured_then(folder: Path) -> None:
    train()
    again = Path("runs/again")
    again.mkdir()
    shutil.copy("runs/run/decisions.jsonl", again)
    train("run.name=again", "evaluate.tokens=60", "evaluate.every=5")
    assert losses("again") == losses()
    assert read_decisions(again / "decisions.jsonl") == read_decisions(Path("runs/run/decisions.jsonl"))


class SavesFirst(Trainer):
    """Saves after every step, before it is evaluated, and dies of that at step 9."""

    def on_step(self, step: int, stats: StepStats) -> None:
        self.save()
        if step + 1 == 9:
            raise KeyboardInterrupt


def test_a_checkpoint_from_before_the_evaluation_ends_the_stage_all_the_same(folder: Path) -> None:
    train("run.name=calm")
    with pytest.raises(KeyboardInterrupt):
        SavesFirst("run.toml", show=False).run()
    assert RunFolder(Path("runs/run")).last_step() == 9
    assert not Path("runs/run/decisions.jsonl").exists()
    train()
    assert ends_at() == 9
    assert losses() == {step: loss for step, loss in losses("calm").items() if step != 9}  # which has no event


def test_a_rule_that_is_changed_once_the_stage_has_ended_is_refused(folder: Path) -> None:
    train("stages.0.until.below=5.7", until=8)  # the future is open
    train(until=11)
    advice = "Put it back, write steps = 9 instead of it, or fork an earlier checkpoint"
    for override, now in ((NEVER, "validation loss of web below 0.1"), ("stages.0.until=", "absent")):
        steps = () if override == NEVER else ("stages.0.steps=20",)
        with pytest.raises(ResumeError) as error:
            train(override, *steps)
        assert str(error.value) == (
            "cannot resume at step 11: stages[0].until was validation loss of web below 5.9, on which the stage ended "
            f"at step 9, and is now {now}. {advice}: trivium fork runs/run --at STEP new.toml"
        )
    lose_after("run", 6)
    with pytest.raises(
        ResumeError, match=r"cannot resume at step 6: stages\[0\]\.until was validation loss of web below"
    ):
        train(NEVER)
    train('schedule={ shape = "cosine", warmup = { steps = 2 }, horizon = { steps = 28 } }', *LENGTH_TAKEN, until=12)
    assert max(losses()) == 12


def test_a_fork_has_what_was_decided_before_it_and_may_go_on_from_the_end(folder: Path) -> None:
    train(until=11)
    fork_run(Path("runs/run"), 11, Path("run.toml"), ["run.name=after"])
    assert ends_at("after") == 9
    fork_run(Path("runs/run"), 9, Path("run.toml"), ["run.name=at"])
    assert ends_at("at") == 9
    fork_run(Path("runs/run"), 9, Path("run.toml"), ["run.name=longer", NEVER])
    assert Path("runs/longer/decisions.jsonl").read_bytes() == b""
    assert [stage.start for stage in train("run.name=longer", NEVER).plan.stages] == [0, 20, 25]
    fork_run(Path("runs/run"), 8, Path("run.toml"), ["run.name=before"])
    assert not Path("runs/before/decisions.jsonl").exists()
    train("run.name=before")
    assert ends_at("before") == 9
    with pytest.raises(ResumeError, match=r"until was validation loss of web below 5\.9, on which the stage ended at"):
        fork_run(Path("runs/run"), 11, Path("run.toml"), ["run.name=other", NEVER])


def test_a_size_that_is_changed_before_the_end_lets_the_stage_be_decided_again(folder: Path) -> None:
    train("schedule.shape=constant", until=10)
    lose_after("run", 4)
    train("schedule.shape=constant", batch_size=2)
    first, resized, second = read_decisions(Path("runs/run/decisions.jsonl"))
    assert (first.step, resized) == (9, BatchResized(step=4, size=2))
    assert isinstance(second, StageEnded)
    again = Path("runs/again")
    again.mkdir()
    shutil.copy("runs/run/decisions.jsonl", again)
    train("run.name=again", "schedule.shape=constant")
    assert losses("again") == losses()


def test_a_stage_is_not_ended_within_its_ramp(folder: Path) -> None:
    train("stages.0.batch_size={ from = 4, to = 8, over = 640, by = 4 }", "stages.0.until.below=6.1")
    sizes = [event["tokens"] // 16 for event in events("step") if event["stage"] == "one"]
    assert sizes[0] == 4
    assert sizes[-1] == 8
    assert [notice["text"].split(":")[0] for notice in events("notice")][:1] == [
        "the figure of stage one is reached, and it cannot end here yet"
    ]


def test_the_last_stage_may_end_the_run_and_a_launch_may_end_before_a_stage_that_comes_sooner(folder: Path) -> None:
    trainer = train(until="three")
    assert trainer.step == 14
    until = 'stages.2.until={ validation = "web", below = 9.0 }'
    trainer = train(until, "evaluate.every=2")
    assert trainer.finished
    assert trainer.step == trainer.plan.total_steps == 16
    assert ends_at_all() == [9, 16]


def ends_at_all(run: str = "run") -> list[int]:
    return [each.step for each in read_decisions(Path("runs", run, "decisions.jsonl"))]


def test_a_stage_ends_on_a_score_that_is_measured_at_its_own_cadence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_arc(tmp_path / "arc", 8)
    (tmp_path / "run.toml").write_text(SCORED)
    trainer = train()
    first = next(event for event in events("scored") if event["step"] > 5 and event["scores"]["arc"]["score"] >= 0.1)
    assert first["averaged"] is False
    assert (trainer.step, trainer.plan.total_steps) == (first["step"], first["step"])
    assert trainer.decisions == (
        StageEnded(step=first["step"], until="score arc at least 0.1", figure=first["scores"]["arc"]["score"]),
    )


@pytest.mark.slow
def test_two_ranks_agree_on_the_end_and_go_on_together(folder: Path) -> None:
    config = CONFIG.replace("kl = { beta = 0.1 }", "")
    (folder / "run.toml").write_text(config)
    said = on_two_ranks(TRAINS, "7", "two", "")
    assert said[0] == said[1]
    *_, last = said[0].splitlines()
    assert last.startswith("17 [(0, 9), (9, 14), (14, 17)] (StageEnded(step=9,")
    train("run.name=alone")
    assert losses() == pytest.approx(losses("alone"), rel=1e-5)

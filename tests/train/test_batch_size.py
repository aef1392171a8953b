"""Batch sizes that change: within a stage as the config has it, and at a resume as somebody decides."""

import json
import shutil
from pathlib import Path

import pytest

from tests.support.events import steps_taken
from tests.support.training import SMALL_MODEL, losses, train, write_sources
from trivium.errors import ResumeError, UsageError
from trivium.run.decisions import BatchResized, read_decisions
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
[schedule]
shape = "constant"
warmup = { steps = 2 }
[checkpoint]
every = 3
keep = 9
[sources.web]
kind = "tokens"
path = "web"
[sources.code]
kind = "tokens"
path = "code"
[[stages]]
name = "one"
tokens = 896
mixture = { web = 0.75, code = 0.25 }
seq_len = 16
batch_size = 8
[[stages]]
name = "two"
steps = 3
mixture = { code = 1.0 }
seq_len = 16
batch_size = 4
"""
)
RAMP = "stages.0.batch_size={ from = 2, to = 8, over = 480, by = 2 }"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two sources and a config of two stages, the first of 7 steps; the tests work there."""
    write_sources(tmp_path)
    (tmp_path / "run.toml").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def rows_taken(name: str = "run") -> list[int]:
    """Rows of every step, as its event has them."""
    return [event["tokens"] // 16 for event in steps_taken(Path(f"runs/{name}/events.jsonl")).values()]


@pytest.mark.parametrize("engine", ["torch", "jax"])
def test_a_ramp_is_exact_whatever_the_engine_the_passes_and_the_stops(folder: Path, engine: str) -> None:
    own = (RAMP, f"engine.name={engine}")
    calm = train("run.name=calm", *own)
    sizes = [calm.plan.settings_at(step).batch_size for step in range(calm.plan.total_steps)]
    assert sizes == [2, 2, 2, 2, 2, 4, 4, 4, 6, 6, 8, 8, 8, 4, 4, 4]
    assert rows_taken("calm") == sizes
    for stop in (5, 9):
        train(*own, until=stop)
    train(*own)
    assert losses() == losses("calm")
    train("run.name=passes", *own, "engine.micro_batch_size=2")
    passes, whole = losses("passes"), losses("calm")
    assert max(abs(passes[step] - whole[step]) for step in whole) < 1e-5


def test_a_size_that_is_changed_at_a_resume_is_kept_and_gives_the_run_again(folder: Path) -> None:
    train(until=3)
    train(until=5, batch_size=6)
    train(until=7)  # which keeps it
    train(until=7, batch_size=6)  # as does asking for the same again
    train(batch_size=8)  # and back, in the last rows of the stage
    assert rows_taken() == [8, 8, 8, 6, 6, 6, 6, 8, 4, 4, 4]  # 56 rows of the stage, as 896 tokens are
    decisions = (BatchResized(step=3, size=6), BatchResized(step=7, size=8))
    assert read_decisions(Path("runs/run/decisions.jsonl")) == decisions
    started = [event for event in read_events(Path("runs/run/events.jsonl")) if event["event"] == "started"]
    assert [event["changes"] for event in started] == [
        {},
        {"stages[0].batch_size": "8 -> 6 (--batch-size)"},
        {},
        {},
        {"stages[0].batch_size": "6 -> 8 (--batch-size)"},
    ]
    plan = json.loads(Path("runs/run/plan.json").read_text())
    assert plan["stages"][0]["batches"] == [[0, 8], [3, 6], [7, 8]]
    assert plan["decisions"][0] == "from step 3 on: 6 rows in a step, to the stage's end"
    again = Path("runs/again")
    again.mkdir()
    shutil.copy("runs/run/decisions.jsonl", again)
    train("run.name=again")
    assert losses("again") == losses()


def test_decisions_outlive_their_file_the_folder_and_a_fork(folder: Path) -> None:
    second = "checkpoint.copy_to=second"
    train(second, until=3)
    train(second, until=6, batch_size=4)
    Path("runs/run/decisions.jsonl").unlink()
    train(second, until=8)  # from the checkpoint's state
    assert read_decisions(Path("runs/run/decisions.jsonl")) == (BatchResized(step=3, size=4),)
    shutil.rmtree("runs/run")
    train(second, until=9)
    assert rows_taken() == [4]  # step 8 alone
    assert read_decisions(Path("runs/run/decisions.jsonl")) == (BatchResized(step=3, size=4),)
    fork_run(Path("second/run"), 6, Path("run.toml"), ["run.name=fork"])
    fork_run(Path("second/run"), 3, Path("run.toml"), ["run.name=early"])
    train("run.name=fork", until=9)
    assert rows_taken("fork") == [4, 4, 4]
    assert RunFolder(Path("runs/early")).decisions.exists() is False
    train("run.name=early", until=5)
    assert rows_taken("early") == [8, 8]


def test_what_cannot_be_changed_is_refused_with_what_to_write(folder: Path) -> None:
    with pytest.raises(UsageError) as error:
        train(batch_size=6)
    assert str(error.value) == (
        "--batch-size: changes a run that resumes, and this one has no checkpoint. "
        "Write it in the config, or as stages.one.batch_size=6."
    )
    with pytest.raises(UsageError, match="--batch-size: changes a run that resumes; a dry run starts over"):
        Trainer("run.toml", batch_size=6, dry_run=True)
    train(until=3)
    with pytest.raises(ResumeError) as refused:
        train("stages.0.batch_size=6")
    assert str(refused.value) == (
        "cannot resume at step 3: stages[0].batch_size was 8 and is now 6, and steps 0 to 2 have been taken. "
        "Put it back, and give --batch-size to change it from step 3 on."
    )
    train("stages.1.batch_size=2")  # the future is open
    assert rows_taken() == [8] * 7 + [2] * 3
    with pytest.raises(UsageError, match=r"--batch-size: all 10 steps of the run are taken\. Leave it out"):
        train("stages.1.batch_size=2", batch_size=6)


def test_a_schedule_over_the_runs_steps_is_refused_with_the_horizon_that_keeps_it(folder: Path) -> None:
    cosine = 'schedule.shape="cosine"'
    train(cosine, until=4)
    with pytest.raises(ResumeError) as refused:
        train(cosine, batch_size=4)
    assert str(refused.value) == (
        "cannot resume at step 4: the run had 10 steps and now has 13, which changes the learning rate from step 2 "
        "on, and steps 0 to 3 have been taken. Put it back, or write schedule.horizon = { steps = 10 }, which keeps "
        "the rates of the steps taken. With schedule.horizon = { steps = 10 } the learning rate is 0 from step 10 on: "
        "stretch the rest of it, schedule.extend = { at = { steps = 4 }, to = { steps = 13 } }, or "
        'put those steps into a stage with its own rate, lr = { shape = "linear" }.'
    )
    assert not Path("runs/run/decisions.jsonl").exists()


def test_a_damaged_checkpoint_moves_a_decision_to_the_step_before_it(folder: Path) -> None:
    train(until=6)
    (Path("runs/run/checkpoints/step-00000006") / "state.json").write_text("{}")
    with pytest.raises(ResumeError, match="is planned from step 6 on, and the run resumes at step 3: its last"):
        train(batch_size=6)
    assert not Path("runs/run/decisions.jsonl").exists()
    train(batch_size=6, until=5)
    assert read_decisions(Path("runs/run/decisions.jsonl")) == (BatchResized(step=3, size=6),)

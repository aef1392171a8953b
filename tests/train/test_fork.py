"""Another future from a checkpoint, and a list of runs."""

import json
from pathlib import Path

import pytest
from rich.console import Console

from tests.support.training import losses, train
from trivium.errors import ResumeError, SaveError, UsageError
from trivium.run.events import read_events
from trivium.run.folder import RunFolder
from trivium.run.listing import list_runs, show_runs
from trivium.train.fork import fork_run
from trivium.train.trainer import Trainer

CONFIG = Path("run.toml")


def test_a_fork_shares_the_past_and_has_a_future_of_its_own(folder: Path) -> None:
    train()
    other = ["run.name=other", "stages.2.mixture={ web = 1.0 }"]
    said = fork_run(Path("runs/run/checkpoints/step-00000011"), None, CONFIG, other)
    assert said == (
        "runs/other: forked from runs/run at step 11. "
        "Continue with: trivium train run.toml run.name=other 'stages.2.mixture={ web = 1.0 }'"
    )
    assert json.loads(Path("runs/other/lineage.json").read_text())["run"] == "runs/run"
    Trainer("run.toml", other, show=False).run()
    assert sorted(losses("other")) == list(range(12, 20))
    assert losses("other")[12] != losses()[12]
    same = ["run.name=same"]
    fork_run(Path("runs/run"), 11, CONFIG, same)
    Trainer("run.toml", same, show=False).run()
    assert losses("same") == {step: loss for step, loss in losses().items() if step > 11}
    started = next(event for event in read_events(Path("runs/same/events.jsonl")) if event["event"] == "started")
    assert (started["lineage"]["run"], started["lineage"]["step"]) == ("runs/run", 11)


@pytest.mark.slow
def test_a_fork_in_a_stage_with_kl_takes_its_reference_along(folder: Path) -> None:
    kl = "stages.1.kl={ beta = 0.1 }"
    train(kl, "checkpoint.keep=9")
    fork_run(Path("runs/run"), 9, CONFIG, [kl, "run.name=fork"])
    assert [each.step for each in RunFolder(Path("runs/fork")).checkpoints()] == [6, 9]
    Trainer("run.toml", [kl, "run.name=fork"], show=False).run()
    assert losses("fork") == {step: loss for step, loss in losses().items() if step > 9}


def test_what_differs_in_the_past_is_refused_by_key(folder: Path) -> None:
    train()
    with pytest.raises(ResumeError) as error:
        fork_run(Path("runs/run"), 11, CONFIG, ["run.name=other", "stages.0.seq_len=8"])
    assert str(error.value).startswith("cannot resume at step 11: stages[0].seq_len was 16 and is now 8, and steps 0 ")
    assert not Path("runs/other").exists()


def test_a_fork_needs_a_name_and_a_checkpoint_of_its_own(folder: Path) -> None:
    train()
    with pytest.raises(ResumeError) as error:
        fork_run(Path("runs/run"), 11, CONFIG)
    assert str(error.value) == "runs/run: is a run already. Give run.name another name in run.toml."
    with pytest.raises(ResumeError) as error:
        fork_run(Path("runs/run"), 10, CONFIG, ["run.name=other"])
    assert str(error.value) == "runs/run: has no checkpoint of step 10. It has: 6, 11, 15, 18, 19."
    weights = next(RunFolder(Path("runs/run")).checkpoints()[-1].engine.glob("*.safetensors"))
    weights.write_bytes(weights.read_bytes()[:-1] + b"?")
    with pytest.raises(ResumeError) as error:
        fork_run(Path("runs/run"), None, CONFIG, ["run.name=other"])
    assert str(error.value) == f"{weights}: its content has changed since it was written. Fork from another checkpoint."


def test_a_fork_is_whole_or_absent(folder: Path) -> None:
    kl = ["stages.1.kl={ beta = 0.1 }", "run.name=fork"]
    train(kl[0], "checkpoint.keep=9")
    weights = next((Path("runs/run/checkpoints/step-00000006/engine")).glob("*.safetensors"))
    weights.write_bytes(b"")  # of the reference, which is copied first
    with pytest.raises(ResumeError, match="while it was copied"):
        fork_run(Path("runs/run"), 9, CONFIG, kl)
    assert [path.name for path in Path("runs").iterdir()] == ["run"]


def test_a_place_that_cannot_be_written_to_is_one_message(folder: Path) -> None:
    train()
    Path("file").write_text("")
    with pytest.raises(SaveError) as error:
        fork_run(Path("runs/run"), 11, CONFIG, ["run.folder=file"])
    assert str(error.value) == (
        "file/run: cannot be written to: Not a directory. Make room, or give run.folder a place that you may write to."
    )


def test_runs_are_listed_with_stage_state_and_lineage(
    folder: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    class Stopped(Trainer):
        def on_step(self, step: int, stats: object) -> None:
            self.stopping = step == 7

    train()
    Stopped("run.toml", ["run.name=stopped"], show=False).run()
    fork_run(Path("runs/run"), 15, CONFIG, ["run.name=fork"])
    found = {each.name: each for each in list_runs(Path("runs"))}
    assert [(each.state, each.step, each.checkpoint) for each in found.values()] == [
        ("new", 15, 15),
        ("finished", 19, 19),
        ("stopped", 8, 8),
    ]
    assert (found["stopped"].stage, found["fork"].lineage) == ("two", "runs/run at 15")
    show_runs(list(found.values()), Console(width=120))
    assert capsys.readouterr().out.splitlines()[0].split() == [
        "run", "state", "step", "of", "stage", "loss", "checkpoint", "forked", "from",
    ]  # fmt: skip
    held = RunFolder(Path("runs/run"))
    held.lock()
    assert list_runs(Path("runs"))[1].state == "running"
    held.unlock()
    with pytest.raises(UsageError) as error:
        list_runs(Path("nowhere"))
    assert str(error.value) == "nowhere: is not a folder. Give the one that run.folder names."
    assert json.loads(Path("runs/fork/lineage.json").read_text())["step"] == 15

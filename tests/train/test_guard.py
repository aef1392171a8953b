"""Steps that go wrong: left out, told of with their rows, and never fatal before their time."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from math import inf, nan
from pathlib import Path
from statistics import stdev
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.command_line import trivium
from tests.support.scripts import ROOT
from tests.support.training import losses, train
from trivium.config.optimizer import Skip
from trivium.config.schema import Guard as GuardSettings
from trivium.engine.base import StepStats
from trivium.errors import GuardError, ResumeError, SaveError
from trivium.files import hash_file
from trivium.run.events import read_events
from trivium.run.folder import RunFolder
from trivium.train.guard import GRACE_STEPS, Guard
from trivium.train.trainer import Trainer

EVENTS = Path("runs/run/events.jsonl")


def stats(loss: float, skipped: str | None = None) -> StepStats:
    return StepStats(loss, 1, 1.0, {}, {}, skipped=skipped)


def guard_after(losses: list[float], **settings: Any) -> Guard:
    guard = Guard(GuardSettings(**settings))
    guard.enter(0)
    for step, loss in enumerate(losses):
        guard.took(step, stats(loss))
    return guard


def test_a_loss_far_above_the_recent_ones_is_a_spike() -> None:
    guard = guard_after([3.0 + 0.01 * (step % 5) for step in range(40)])
    assert stats(3.1).loss <= guard.spike_limit
    assert stats(4.0).loss > guard.spike_limit
    assert guard.limits[0] == inf
    assert guard_after([3.0] * 40, skip_spikes=True).limits[0] == pytest.approx(3.15)


def test_a_stage_is_judged_by_its_own_losses_alone() -> None:
    guard = guard_after([1.0] * 40)
    guard.enter(1)
    for step in range(GRACE_STEPS):
        assert guard.spike_limit == inf
        guard.took(step, stats(9.0))
    assert stats(9.1).loss <= guard.spike_limit


@given(st.lists(st.floats(0, 20), max_size=90))
def test_a_resumed_guard_judges_as_the_one_before(before: list[float]) -> None:
    guard = guard_after(before)
    resumed = Guard(GuardSettings())
    resumed.load_state(json.loads(json.dumps(guard.state())))
    resumed.enter(0)
    assert resumed.spike_limit == guard.spike_limit


def test_too_many_left_out_in_a_row_end_the_run() -> None:
    guard = guard_after([1.0], max_consecutive_skips=2)
    guard.took(7, stats(nan, "the loss is nan"))
    with pytest.raises(GuardError) as error:
        guard.took(8, stats(nan, "the loss is nan"))
    assert str(error.value) == (
        "steps 7 to 8: the loss is nan, 2 updates skipped in a row (guard.max_consecutive_skips). Skip these rows, and "
        "start the run again: guard.skip_steps = [[7, 9]]. Or fork a checkpoint before them, and end the stage there: "
        "one with a lower learning rate may follow."
    )


class Poisoned(Trainer):
    """A run in which the gradients of some steps are not finite, as an overflow makes them."""

    bad: tuple[int, ...] = (4, 5)

    def train_step(self, batch: Any, now: Any) -> StepStats:
        if now.step not in self.bad:
            return super().train_step(batch, now)
        weight = next(self.engine.model.parameters())  # type: ignore[attr-defined]
        hook = weight.register_hook(lambda gradient: torch.full_like(gradient, nan))
        try:
            return super().train_step(batch, now)
        finally:
            hook.remove()


def test_an_update_that_is_not_finite_is_left_out_and_the_run_goes_on(folder: Path) -> None:
    trainer = Poisoned("run.toml", show=False).run()
    assert trainer.finished
    events = list(read_events(EVENTS))
    skipped = [event for event in events if event["event"] == "skipped"]
    assert [(event["step"], event["stage"]) for event in skipped] == [(5, "one"), (6, "one")]
    assert "the gradient's norm nan" in skipped[0]["why"]
    rows = json.loads((Path("runs/run") / skipped[0]["rows"]).read_text())
    assert [row["row"] for row in rows] == list(range(8))
    assert {piece["file"] for row in rows for piece in row["pieces"]} <= {"0.ds", "00000.ds", *_files(folder)}
    assert sorted(losses()) == [step for step in range(1, 20) if step not in (5, 6)]
    assert all(np.isfinite(list(losses().values())))
    _same_as_leaving_out([4, 6])


def _files(folder: Path) -> set[str]:
    return {path.name for path in folder.rglob("*.ds")}


def _same_as_leaving_out(span: list[int]) -> None:
    """Left-out updates change no weight: the same as leaving out these steps' rows from the start."""
    train("run.name=asked", f"guard.skip_steps=[{span}]")
    ends = [RunFolder(Path("runs") / name).checkpoints()[-1].engine for name in ("run", "asked")]
    files = [sorted((path.name, hash_file(path)) for path in end.iterdir()) for end in ends]
    assert files[0] == files[1]


@pytest.mark.slow
def test_a_run_that_goes_wrong_for_good_ends_and_names_the_rows(folder: Path) -> None:
    class Doomed(Poisoned):
        bad = tuple(range(4, 19))

    with pytest.raises(GuardError) as error:
        Doomed("run.toml", show=False).run()
    assert str(error.value).startswith("steps 4 to 8: the loss is ")
    assert len(list(Path("runs/run/rows").glob("step-*.json"))) == 5
    code, out, err = trivium(folder, "inspect", "runs/run", "--step", "8", "--row", "0")
    assert code == 0, err
    assert out.startswith("step 8: stage two")


@pytest.mark.slow
def test_what_the_guard_advises_is_accepted(folder: Path) -> None:
    class Doomed(Poisoned):
        bad = (4, 5, 6, 7, 8)

    with pytest.raises(GuardError) as error:
        Doomed("run.toml", ["guard.skip_steps=[[1, 2]]"], show=False).run()
    advice = str(error.value).partition("guard.skip_steps = ")[2].partition(". ")[0]
    assert advice == "[[1, 2], [4, 9]]"
    last = RunFolder(Path("runs/run")).checkpoints()[-1].step
    assert last == 6  # in the middle of them
    assert Doomed("run.toml", [f"guard.skip_steps={advice}"], show=False).run().finished
    ends = RunFolder(Path("runs/run")).checkpoints()[-1].engine
    train("run.name=asked", f"guard.skip_steps={advice}")
    asked = RunFolder(Path("runs/asked")).checkpoints()[-1].engine
    assert [hash_file(path) for path in sorted(ends.iterdir())] == [hash_file(path) for path in sorted(asked.iterdir())]


def test_a_refused_launch_leaves_config_and_plan_as_they_were(folder: Path) -> None:
    train()
    kept = {name: (Path("runs/run") / name).read_bytes() for name in ("config.toml", "plan.json")}
    with pytest.raises(ResumeError):
        train("stages.0.seq_len=8")
    assert {name: (Path("runs/run") / name).read_bytes() for name in kept} == kept
    train("checkpoint.keep=3")
    assert (Path("runs/run") / "config.toml").read_bytes() != kept["config.toml"]


def test_a_signal_among_steps_that_are_left_out_is_heeded(folder: Path) -> None:
    class Signalled(Trainer):
        @property
        def done(self) -> bool:
            if self.step == 4:
                os.kill(os.getpid(), signal.SIGTERM)
            return super().done

    trainer = Signalled("run.toml", ["guard.skip_steps=[[3, 9]]"], show=False).run()
    assert (trainer.step, trainer.finished) == (5, False)


def test_every_batch_of_an_evaluation_is_progress(folder: Path) -> None:
    class Timed(Trainer):
        beats: ClassVar[list[float]] = []

        def val_step(self, batch: Any) -> Any:
            self.beats.append(self.session.watchdog._last)
            return super().val_step(batch)

    Timed("run.toml", ["engine.micro_batch_size=1"], show=False).run()
    evaluations = [event for event in read_events(EVENTS) if event["event"] == "evaluated"]
    assert len(set(Timed.beats)) == len(Timed.beats) > len(evaluations)


def test_steps_that_were_left_out_are_the_past_too(folder: Path) -> None:
    class Stopped(Trainer):
        def on_step(self, step: int, stats: object) -> None:
            self.stopping = step == 8

    Stopped("run.toml", ["guard.skip_steps=[[3, 5]]"], show=False).run()
    with pytest.raises(ResumeError) as error:
        train("guard.skip_steps=[[3, 6]]")
    assert "guard.skip_steps was [[3, 5]] and is now [[3, 6]]" in str(error.value)
    train("guard.skip_steps=[[3, 5], [12, 14]]")
    assert sorted(losses()) == [step for step in range(1, 20) if step not in (4, 5, 13, 14)]


@pytest.mark.slow
def test_a_spike_is_told_of_with_its_rows_and_left_out_where_asked(folder: Path) -> None:
    class Spiky(Trainer):
        def train_step(self, batch: Any, now: Any) -> StepStats:
            if now.step == 22:
                with torch.no_grad():
                    self.engine.model.unembedding.weight.mul_(60.0)  # type: ignore[attr-defined]
            return super().train_step(batch, now)

    overrides = ["stages.0.steps=24", "schedule={}", "stages.0.lr={ scale = 0.01 }"]
    Spiky("run.toml", [*overrides], show=False).run()
    spikes = [event for event in read_events(EVENTS) if event["event"] == "spiked"]
    assert spikes[0]["step"] == 23
    assert spikes[0]["rows"] == "rows/step-00000022.json"
    Spiky("run.toml", [*overrides, "run.name=skips", "guard.skip_spikes=true"], show=False).run()
    skipped = [event for event in read_events(Path("runs/skips/events.jsonl")) if event["event"] == "skipped"]
    assert skipped[0]["step"] == 23
    assert "over the limit of" in skipped[0]["why"]


@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR1"])
def test_a_signal_is_recorded_by_its_name(folder: Path, name: str) -> None:
    class Signalled(Trainer):
        def on_step(self, step: int, stats: object) -> None:
            if step == 3:
                os.kill(os.getpid(), signal.Signals[name])

    trainer = Signalled("run.toml", show=False).run()
    assert (trainer.step, trainer.finished) == (4, False)
    (preempted,) = [event for event in read_events(EVENTS) if event["event"] == "preempted"]
    assert (preempted["step"], preempted["signal"]) == (4, name)
    assert [each.step for each in RunFolder(Path("runs/run")).checkpoints()] == [3, 4]


@pytest.mark.slow
def test_a_run_that_stands_still_ends_with_its_stacks(folder: Path) -> None:
    script = (
        "import time\n"
        "from trivium.train.trainer import Trainer\n"
        "class Stuck(Trainer):\n"
        "    def on_step(self, step, stats):\n"
        "        while step == 3: time.sleep(1)\n"
        "Stuck('run.toml', ['guard.stall_minutes=0.05'], show=False).run()\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ran = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
    assert ran.returncode == 4, ran.stderr
    assert "(guard.stall_minutes): ended. Stacks: runs/run/stacks/rank-0.txt" in ran.stderr
    assert "on_step" in Path("runs/run/stacks/rank-0.txt").read_text()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of six megabytes."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", str(disk)], capture_output=True)
    if mounted.returncode:
        pytest.skip("a disk can be mounted by root only")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


class Filling(Trainer):
    """A run whose disk fills up at one step, and is emptied at a later one."""

    fills, empties = 4, 10

    def on_step(self, step: int, stats: object) -> None:
        disk = Path(self.config.run.folder)
        if step == self.fills:
            with open(disk / "filler", "wb", buffering=0) as file:
                try:
                    while True:
                        file.write(bytes(4096))
                except OSError:
                    pass
        if step == self.empties:
            (disk / "filler").unlink()


def test_a_full_disk_does_not_end_a_run(small_disk: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trivium.run.saver.FIRST_PAUSE", 0.0)
    trainer = Filling("run.toml", [f"run.folder={small_disk}"], show=False).run()
    events = list(read_events(small_disk / "run/events.jsonl"))
    failed = [event for event in events if event["event"] == "save_failed"]
    saved = [event["step"] for event in events if event["event"] == "saved"]
    assert failed
    assert {event["step"] for event in failed} <= set(range(5, 12))
    assert "No space left on device" in failed[0]["why"]
    assert saved[0] == 3
    # At once when there is room again, not only when the next one is due; a save of step 10 may still find that room.
    assert saved[1] in (10, 11)
    assert trainer.finished
    assert not list(small_disk.glob("run/checkpoints/.draft-*"))


def test_a_full_disk_while_rows_are_written_down_ends_no_run(small_disk: Path, folder: Path) -> None:
    class Full(Filling, Poisoned):
        bad = (5, 6)
        empties = 7

    trainer = Full("run.toml", [f"run.folder={small_disk}", "checkpoint.every=100"], show=False).run()
    assert trainer.finished
    events = list(read_events(small_disk / "run/events.jsonl"))
    assert [event["rows"] for event in events if event["event"] == "skipped"] == [None, None]
    said = [event["text"] for event in events if event["event"] == "notice"]
    assert [text for text in said if "rows" in text] == [
        f"the rows of step {step} are not written down: No space left on device; "
        f"trivium inspect {small_disk}/run --step {step} shows them"
        for step in (5, 6)
    ]


@pytest.mark.slow
def test_a_final_checkpoint_that_cannot_be_written_is_an_error(small_disk: Path, folder: Path) -> None:
    class Full(Filling):
        fills, empties = 17, -1

    with pytest.raises(SaveError) as error:
        Full("run.toml", [f"run.folder={small_disk}"], show=False).run()
    where = small_disk / "run/checkpoints"
    assert str(error.value).startswith(f"{where}: the checkpoint of step 19 (final) cannot be written: ")
    assert str(error.value).endswith("Make room, and start the run again: it resumes from its last checkpoint.")
    assert RunFolder(small_disk / "run").checkpoints()[-1].step == 15


def test_checkpoints_are_copied_to_a_second_place_and_fetched_from_there(folder: Path) -> None:
    train("checkpoint.copy_to=backup")
    own, copies = (RunFolder(Path(place) / "run").checkpoints() for place in ("runs", "backup"))
    assert [each.step for each in copies] == [each.step for each in own]
    assert all(each.verify() is None for each in copies)
    for checkpoint in own:
        (checkpoint.path / "COMPLETE").unlink()
    trainer = train("checkpoint.copy_to=backup")
    assert trainer.finished
    said = [event["text"] for event in read_events(EVENTS) if event["event"] == "notice"]
    assert said[-1] == "checkpoint of step 19 copied from backup/run"


@pytest.mark.slow
def test_the_references_of_stages_with_kl_are_copied_and_fetched_too(folder: Path) -> None:
    kl = "stages.1.kl={ beta = 0.1 }"

    class Stopped(Trainer):
        def on_step(self, step: int, stats: object) -> None:
            self.stopping = step == 9

    train(kl, "run.name=whole")
    Stopped("run.toml", [kl, "checkpoint.copy_to=backup"], show=False).run()
    shutil.rmtree("runs/run")
    train(kl, "checkpoint.copy_to=backup")
    said = [event["text"] for event in read_events(EVENTS) if event["event"] == "notice"]
    assert said[:2] == [f"checkpoint of step {step} copied from backup/run" for step in (6, 10)]
    assert {step: loss for step, loss in losses("whole").items() if step > 10} == losses()


def test_a_second_place_that_is_not_there_ends_no_run(folder: Path) -> None:
    Path("backup").write_text("a file")
    assert train("checkpoint.copy_to=backup").finished
    said = [event["text"] for event in read_events(EVENTS) if event["event"] == "notice"]
    assert said[0].startswith("not copied to backup: ")


def skipping(losses: list[float], norms: list[float], **rule: float) -> Guard:
    guard = Guard(GuardSettings())
    guard.enter(0, Skip(**rule))  # type: ignore[arg-type]
    for step, (loss, norm) in enumerate(zip(losses, norms, strict=True)):
        guard.took(step, replace(stats(loss), grad_norm=norm))
    return guard


def test_a_step_is_skipped_by_the_mean_and_deviation_of_the_last_ones() -> None:
    losses, norms = [3.0, 3.2, 3.1, 3.3], [1.0, 2.0, 1.0, 2.0]
    guard = skipping([9.0, *losses], [9.0, *norms], deviations=2.0, steps=4)  # the first one is forgotten
    assert guard.limits == pytest.approx((3.15 + 2 * stdev(losses), 1.5 + 2 * stdev(norms)))
    assert skipping(losses[:1], norms[:1], steps=4).limits == (inf, inf)  # half of the steps are not there yet
    guard.enter(1, Skip(steps=4))
    assert guard.limits == (inf, inf)


def test_skipped_steps_count_in_the_mean_but_not_those_that_are_not_finite() -> None:
    guard = skipping([3.0] * 4, [1.0] * 4, deviations=2.0, steps=4)
    guard.took(4, replace(stats(8.0), grad_norm=5.0, skipped="over the limit"))
    assert guard.recent[-1] == (8.0, 5.0)
    guard.took(5, replace(stats(float("nan")), grad_norm=float("inf"), skipped="not finite"))
    assert guard.recent[-1] == (8.0, 5.0)


def test_what_a_guard_skips_by_is_in_its_state() -> None:
    guard = skipping([3.0, 3.2, 3.1], [1.0, 2.0, 1.5], steps=4)
    again = Guard(GuardSettings())
    again.load_state(json.loads(json.dumps(guard.state())))
    again.enter(0, Skip(steps=4))
    assert again.limits == guard.limits != (inf, inf)

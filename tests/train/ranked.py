"""Runs on many ranks: handed from launch to launch, killed, stopped, broken.

Executed by itself: `python -m tests.train.ranked FOLDER SCENARIO [KILLS]`, in a folder with a run.toml. Everything
is imported once; each launch is as many forks of that. Prints what a test compares, as JSON.
"""

import hashlib
import json
import os
import random
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable
from math import nan
from pathlib import Path
from typing import Any, Literal

import torch

from tests.support.corpus import change_token
from tests.support.events import steps_taken
from tests.support.forked import launch
from tests.support.training import StoppingTrainer
from tests.train.chaos import kill_when, outcome
from trivium.engine.base import StepSettings, StepStats
from trivium.engine.torch import ranks as torch_ranks
from trivium.errors import SilentRankError, StoppedError, TriviumError, exit_code
from trivium.rows.batch import Batch
from trivium.run import saver
from trivium.run.events import read_events
from trivium.run.folder import RunFolder
from trivium.run.row_losses import recent_losses
from trivium.train import meter
from trivium.train.session import Session
from trivium.train.trainer import Trainer

ELASTIC = [  # ranks, layout, the step at which it stops
    (1, "{}", 3),
    (2, "{}", 6),
    (4, "{ shard = 4 }", 9),
    (4, "{ replicate = 2 }", 12),
    (4, "{ tensor = 2 }", 100),
]


SHARED = [  # the same where ranks share the slots of rows
    (1, "{}", 4),
    (4, "{ context = 4 }", 8),
    (2, '{ context = 2, context_method = "ulysses" }', 13),
    (4, "{ context = 2, tensor = 2 }", 100),
]
BY_STAGE = ("engine.parallel.context=2", "stages.1.engine={ context = 1 }", "stages.2.engine={ precision='bfloat16' }")


class Watched(StoppingTrainer):
    """Writes a hash of every row that a rank learns from; of ranks that read the same ones the first does."""

    def train_step(self, batch: Batch, now: StepSettings) -> StepStats:
        arrays = (batch.tokens, batch.targets, batch.segments, batch.positions, batch.source)
        joined = [b"".join(array[row].tobytes() for array in arrays) for row in range(batch.num_rows)]
        rows = [hashlib.blake2b(row).hexdigest() for row in joined]
        reader, readers = self.loader.reader_in(self.stage)
        with open(self.folder.path / f"rows-{self.loader.rank:02}.jsonl", "a") as file:
            if self.ranks.rank % (self.ranks.size // readers) == 0:
                file.write(json.dumps([now.step, reader, rows]) + "\n")
        return super().train_step(batch, now)


def run(name: str, *overrides: str, kind: type[Trainer] = Watched, stop_at: int = 100, dry_run: bool = False) -> None:
    """One rank of one launch; what a user can mend is printed, as the command line does."""
    try:
        trainer = kind("run.toml", [f"run.name={name}", *overrides], show=False, dry_run=dry_run)
        if isinstance(trainer, Watched):
            trainer.stop_at = stop_at
        trainer.run()
    except SilentRankError as error:
        raise SystemExit(exit_code(error)) from None
    except TriviumError as error:
        print(json.dumps({"rank": int(os.environ["RANK"]), "error": str(error)}))  # noqa: T201
        raise SystemExit(exit_code(error)) from None


def rows_read(name: str) -> dict[int, list[str]]:
    """Hashes of every step's rows, in their order over all ranks."""
    shards: dict[tuple[int, int], list[str]] = {}
    for path in Path("runs", name).glob("rows-*.jsonl"):
        for line in path.read_text().splitlines():
            step, rank, rows = json.loads(line)
            shards[step, rank] = rows
    read: dict[int, list[str]] = {}
    for (step, _), rows in sorted(shards.items()):
        read.setdefault(step, []).extend(rows)
    return read


def figures(name: str) -> dict[str, Any]:
    """Losses, rows and starts of a run."""
    events = Path("runs", name, "events.jsonl")
    started = [event for event in read_events(events) if event["event"] == "started"]
    by_row = [recent_losses(Path("runs", name), step - 1) for step in sorted(steps_taken(events))]
    return {
        "losses": {step: event["loss"] for step, event in steps_taken(events).items()},
        "kl": {step: event["extra"]["kl"] for step, event in steps_taken(events).items() if "kl" in event["extra"]},
        "validation": [event["loss"] for event in read_events(events) if event["event"] == "evaluated"],
        "rows": rows_read(name),
        "losses of rows": [loss for rows in by_row for loss in (() if rows is None else rows.tolist())],
        "started": [[event["step"], event["world_size"], event["changes"]] for event in started],
    }


def elastic(shared: int = 0) -> dict[str, Any]:
    """One run on 1, 2 and 4 ranks and several layouts of these, beside one that never stops."""
    assert launch(1, lambda: run("whole")) == [0]
    for size, layout, stop_at in SHARED if shared else ELASTIC:
        codes = launch(size, lambda: run("parts", f"engine.parallel={layout}", stop_at=stop_at))  # noqa: B023
        assert codes == [0] * size, codes
    return {name: figures(name) for name in ("whole", "parts")}


def killed(kills: int, shared: int = 0) -> dict[str, Any]:
    """Two ranks, one of which is killed again and again; the other must end by itself. They may share rows."""
    chance = random.Random(5)
    overrides = BY_STAGE if shared else ()
    assert launch(2, lambda: run("calm", *overrides, kind=Trainer)) == [0, 0]
    total = RunFolder(Path("runs/calm")).checkpoints()[-1].step
    codes: list[list[bool | int]] = []
    while len(codes) < kills:
        victim, lines = chance.randrange(2), chance.randrange(3, 2 * total)
        ended = launch(2, lambda: armed(victim, lines, *overrides))  # noqa: B023
        if -signal.SIGKILL in ended:
            codes.append([code == -signal.SIGKILL for code in ended] + [victim])
        else:  # it came to its end before the kill did: start over
            assert ended == [0, 0], ended
            RunFolder(Path("runs/killed")).keep_only([])
    assert launch(2, lambda: run("killed", *overrides, kind=Trainer)) == [0, 0]
    found: dict[str, Any] = {name: outcome(Path("runs", name)) for name in ("calm", "killed")}
    return found | {"codes": codes}


def armed(victim: int, lines: int, *overrides: str) -> None:
    """A launch in which one rank is killed when the run has told so many events."""
    told = 0

    def enough(*_: object) -> bool:
        nonlocal told
        told += 1
        return int(os.environ["RANK"]) == victim and told == lines

    kill_when(Session, "tell", enough)
    run("killed", *overrides, kind=Trainer)


def stopped() -> dict[str, Any]:
    """SIGTERM to one of two ranks: both finish the same step and save."""
    Signalled.at = 4
    codes = launch(2, lambda: run("stopped", kind=Signalled))
    events = list(read_events(Path("runs/stopped/events.jsonl")))
    ended = [event for event in events if event["event"] == "ended"]
    return {
        "codes": codes,
        "saved": RunFolder(Path("runs/stopped")).checkpoints()[-1].step,
        "steps": max(steps_taken(Path("runs/stopped/events.jsonl"))),
        "preempted": [[event["step"], event["signal"]] for event in events if event["event"] == "preempted"],
        "ended": [[event["finished"], event["steps"], event["world_size"]] for event in ended],
    }


class Signalled(Trainer):
    """Rank 1 is sent a signal in the middle of a step."""

    at = -1

    def train_step(self, batch: Batch, now: StepSettings) -> StepStats:
        if self.ranks.rank == 1 and now.step == self.at:
            os.kill(os.getpid(), signal.SIGTERM)
        return super().train_step(batch, now)


class Broken(Trainer):
    """Rank 1 fails in the middle of the run."""

    def train_step(self, batch: Batch, now: StepSettings) -> StepStats:
        if self.ranks.rank == 1 and now.step == 2:
            raise RuntimeError("out of luck")
        return super().train_step(batch, now)


class Gone(Trainer):
    """Rank 1 is killed in the middle of the run."""

    def train_step(self, batch: Batch, now: StepSettings) -> StepStats:
        if self.ranks.rank == 1 and now.step == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().train_step(batch, now)


class Waiting(Trainer):
    """Some ranks are told to stop while they wait for a stream."""

    waits: tuple[int, ...] = ()

    def batch(self, step: int, split: Literal["train", "validation"] = "train") -> Batch:
        if step == 2 and self.ranks.rank in self.waits:
            raise StoppedError("stopped while waiting for web. Start the run again.")
        return super().batch(step, split)


def waiting(*ranks: int) -> list[int]:
    """The exit codes of a launch in which these ranks are told to stop while they wait."""
    Waiting.waits = ranks
    return launch(2, lambda: run("waiting", kind=Waiting))


class Stuck(Broken):
    """Rank 1 fails, and then waits for ever instead of closing what is open: its connections stay."""

    def close_batches(self) -> None:
        if self.ranks.rank == 1:
            threading.Event().wait()
        super().close_batches()


def stuck() -> None:
    """One rank of a launch in which rank 0 waits for a rank that failed; it learns of that before the rank ends."""
    torch_ranks.LISTEN_SECONDS = 0.1
    torch_ranks.END_SECONDS = 1.0 if os.environ["RANK"] == "0" else 6.0  # type: ignore[attr-defined]
    run("stuck", kind=Stuck)


class Slow(Trainer):
    """Rank 1 takes its time over a batch."""

    def train_step(self, batch: Batch, now: StepSettings) -> StepStats:
        time.sleep(0.3 * self.ranks.rank)
        return super().train_step(batch, now)


def lagging() -> None:
    """One rank of a launch whose rank 1 is slow, looked at more often than usual."""
    meter.COMPARED_STEPS = 2
    run("slow", kind=Slow)


class Poisoned(Trainer):
    """From step 4 on no loss is finite, on any rank."""

    def train_step(self, batch: Batch, now: StepSettings) -> StepStats:
        if now.step == 4:
            with torch.no_grad():
                next(self.engine.model.parameters()).mul_(nan)  # type: ignore[attr-defined]
        return super().train_step(batch, now)


class NoRoom(Trainer):
    """Rank 1 cannot write files of any size for some steps, in which no reference is written."""

    steps = range(6, 9)

    def on_step(self, step: int, stats: StepStats) -> None:
        if self.ranks.rank == 1:
            most = 1000 if step in self.steps else resource.RLIM_INFINITY
            resource.setrlimit(resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))


class NoRoomForReferences(NoRoom):
    """The same where one is."""

    steps = range(4, 100)


class Halted(Trainer):
    """Rank 1 is stopped by the system in the middle of the run."""

    def train_step(self, batch: Batch, now: StepSettings) -> StepStats:
        if self.ranks.rank == 1 and now.step == 4:
            os.kill(os.getpid(), signal.SIGSTOP)
        return super().train_step(batch, now)


def no_room(name: str, kind: type[NoRoom]) -> None:
    """One rank of a launch whose saves fail, and are tried again at once."""
    saver.FIRST_PAUSE = 0.0
    run(name, kind=kind)


def faults() -> dict[str, Any]:
    """What the disk, the system and the data do to two ranks."""
    found: dict[str, Any] = {"room": launch(2, lambda: no_room("room", NoRoom))}
    events = list(read_events(Path("runs/room/events.jsonl")))
    found["not saved"] = [[event["step"], event["why"]] for event in events if event["event"] == "save_failed"]
    found["saved"] = [event["step"] for event in events if event["event"] == "saved"]
    found["must"] = launch(2, lambda: no_room("must", NoRoomForReferences))
    found["must have"] = [each.step for each in RunFolder(Path("runs/must")).checkpoints()]
    found["guard"] = launch(2, lambda: run("guard", "guard.max_consecutive_skips=2", kind=Poisoned))
    found["dry"] = launch(2, lambda: run("dry", kind=Trainer, dry_run=True))
    found["left"] = sorted(path.name for path in Path().iterdir())
    found["halted"] = launch(2, lambda: run("halted", "guard.stall_minutes=0.15", kind=Halted))
    found["stacks"] = {path.name: path.read_text() for path in Path("runs/halted/stacks").iterdir()}
    return found


def unknown(run_one: Callable[[str], None]) -> list[int]:
    """Two ranks whose files hold an id that the vocabulary does not have; the codes that they end with."""
    before = Path("web/000.ds").read_bytes()
    change_token(Path("web"), 5, 600, "uint16")
    codes = launch(2, lambda: run_one("unknown"))
    Path("web/000.ds").write_bytes(before)
    Path("web/manifest.json").unlink()
    return codes


def troubles() -> dict[str, Any]:
    """What goes wrong on one rank or on all of them."""
    found: dict[str, Any] = {"stopped": stopped()}
    found["broken"] = launch(2, lambda: run("broken", kind=Broken))
    found["stuck"] = launch(2, stuck)
    found["unknown"] = unknown(run)
    found["uneven"] = launch(2, lambda: run("uneven", "stages.1.batch_size=5", "stages.3.batch_size=3"))
    found["product"] = launch(2, lambda: run("product", "engine.parallel.shard=4"))
    found["past"] = launch(2, lambda: run("stopped", "stages.0.mixture={ web = 0.5, code = 0.5 }"))
    found["one rank"] = launch(2, lambda: run("one", "run.seed=" + ("one" if os.environ["RANK"] == "1" else "1")))
    found["gone"] = launch(2, lambda: run("gone", kind=Gone))
    found["waiting"] = [waiting(0, 1), waiting(1)]
    found["slow"] = launch(2, lagging)
    events = list(read_events(Path("runs/slow/events.jsonl")))
    found["slowest"] = [event["slowest_rank"] for event in events if event["event"] == "step"]
    found["said"] = [event["text"] for event in events if event["event"] == "notice"]
    return found


SCENARIOS: dict[str, Callable[..., dict[str, Any]]] = {
    "elastic": elastic,
    "killed": killed,
    "troubles": troubles,
    "faults": faults,
}

if __name__ == "__main__":
    torch.set_num_threads(1)
    os.chdir(sys.argv[1])
    print(json.dumps(SCENARIOS[sys.argv[2]](*map(int, sys.argv[3:]))))  # noqa: T201

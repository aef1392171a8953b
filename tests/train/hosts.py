"""Runs of the JAX engine on two processes: handed on, killed, broken; and what they write.

Executed by itself, in a folder with a run.toml: `python -m tests.train.hosts FOLDER`. Everything is imported once;
each launch is as many forks of that. Prints what a test compares, as JSON.
"""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np

import trivium.engine.jax.engine  # noqa: F401
from tests.support.arc import write_arc
from tests.support.forked import launch
from tests.train.chaos import outcome
from tests.train.ranked import Watched, figures, unknown
from trivium.ask.generate.generate import generate
from trivium.ask.generate.row import Writing
from trivium.engine.base import StepStats
from trivium.errors import SilentRankError, TriviumError
from trivium.run.events import read_events
from trivium.run.folder import RunFolder

KNOWN = ("engine.name=jax", "tokenizer.kind=bytes", "model.max_seq_len=160")
ASKED = (
    'evaluate.tasks=["spelling", { task = "arc", path = "arc" }]',
    "evaluate.tasks_every=10",
    "evaluate.questions=5",
    "evaluate.max_new_tokens=4",
    'evaluate.prompts=["Spell", "How"]',
)
PROMPTS = [[1, 2, 3], [4, 5, 6, 7], [8, 9, 10], [11, 12, 13], [14, 15, 16, 17]]  # of few shapes to compile
WRITERS = ("one", "two", "shared")
SHARED = ("stages.1.engine={ context = 2 }",)  # both processes have half of each row of the second stage
WRITING = Writing(6, stop=frozenset(range(0, 512, 4)))


class Struck(Watched):
    """One rank is killed, or fails, after a step."""

    victim, at, how = -1, -1, ""

    def on_step(self, step: int, stats: StepStats) -> None:
        super().on_step(step, stats)
        if (self.ranks.rank, step) == (self.victim, self.at):
            if self.how == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            raise RuntimeError("out of luck")


def run(name: str, stop_at: int = 100, victim: int = -1, at: int = -1, how: str = "") -> None:
    """One process of one launch; what a user can mend is printed, as the command line does."""
    try:
        asked = ASKED if name in WRITERS else ()
        layout = SHARED if name == "shared" else ()
        trainer = Struck("run.toml", [*KNOWN, f"run.name={name}", *asked, *layout], show=False)
        trainer.stop_at, trainer.victim, trainer.at, trainer.how = stop_at, victim, at, how
        trainer.run()
        if name in WRITERS:
            write(trainer)
        if trainer.ranks.size > 1:
            jax.distributed.shutdown()  # type: ignore[no-untyped-call]
    except SilentRankError:
        raise SystemExit(2) from None
    except TriviumError as error:
        print(json.dumps({"rank": int(os.environ["RANK"]), "error": str(error)}))  # noqa: T201
        raise SystemExit(2) from None


def write(trainer: Watched) -> None:
    """What the model writes after the prompts; on two processes the second has one of them, and then none."""
    rank, size = trainer.ranks.rank, trainer.ranks.size
    numbers = range(len(PROMPTS)) if size == 1 else (range(4), range(4, 5))[rank]
    prompts = [np.array(PROMPTS[number]) for number in numbers]
    rows = generate(trainer.engine, prompts, WRITING, numbers, trainer.ranks, batch_rows=2)
    every = trainer.ranks.gather([[row.tokens for row in samples] for samples in rows])
    if trainer.ranks.is_main:
        (trainer.folder.path / "written.json").write_text(json.dumps([samples for part in every for samples in part]))


def asked(name: str) -> list[Any]:
    """What a run's model answered and wrote."""
    events = list(read_events(Path("runs", name, "events.jsonl")))
    scores = [event["scores"] for event in events if event["event"] == "scored"]
    return [scores, [event["text"] for event in events if event["event"] == "sampled"]]


def main() -> dict[str, Any]:
    """A run on one process, on two, from two to one, and on two of which one is killed."""
    write_arc(Path("arc"), 5)
    codes = {"one": launch(1, lambda: run("one")), "two": launch(2, lambda: run("two"))}
    codes["shared"] = launch(2, lambda: run("shared"))
    codes["first half"] = launch(2, lambda: run("parts", stop_at=4))
    codes["second half"] = launch(1, lambda: run("parts"))
    codes["killed"] = launch(2, lambda: run("killed", victim=1, at=7, how="killed"))
    left = [each.verify() for each in RunFolder(Path("runs/killed")).checkpoints()]
    codes["goes on"] = launch(2, lambda: run("killed"))
    codes["broken"] = launch(2, lambda: run("broken", victim=1, at=2, how="broken"))
    codes["unknown"] = unknown(run)
    return {
        "codes": codes,
        "faults": left,
        "figures": {name: figures(name) for name in (*WRITERS, "parts")},
        "written": {name: json.loads(Path("runs", name, "written.json").read_text()) for name in WRITERS},
        "asked": {name: asked(name) for name in WRITERS},
        "bits": {name: outcome(Path("runs", name)) for name in ("two", "killed")},
    }


if __name__ == "__main__":
    os.chdir(sys.argv[1])
    print(json.dumps(main()))  # noqa: T201

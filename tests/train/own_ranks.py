"""A model and a loss of one's own, trained without a stop, in two processes one after the other, and in bfloat16.

Executed by itself: `python -m tests.train.own_ranks FOLDER ENGINE DEVICES`, in a folder with a run.toml. Prints what a
test compares, as JSON.
"""

import json
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from tests.support.forked import launch
from tests.train.chaos import outcome
from trivium.run.events import read_events

STOP_AT, NEVER = 5, 10_000


def run(engine: str, name: str, stop_at: int, *overrides: str) -> None:
    """One rank of one launch."""
    own = import_module(f"tests.support.own_{engine}")

    class Both(own.OwnModelTrainer, own.KlTrainer):  # type: ignore[name-defined, misc]
        """Its model is one's own, and so is its loss."""

    asks = ['evaluate.prompts=["ab"]', "evaluate.max_new_tokens=3", 'engine.recompute="full"']
    trainer = Both("run.toml", [f"run.name={name}", f"engine.name={engine}", *asks, *overrides], show=False)
    trainer.stop_at = stop_at
    trainer.run()


def asked(run: Path) -> dict[str, Any]:
    """A run's texts and evaluations."""
    events = list(read_events(run / "events.jsonl"))
    return {
        "texts": [event["text"] for event in events if event["event"] == "sampled"],
        "validation": [event["loss"] for event in events if event["event"] == "evaluated"],
    }


def main(folder: Path, engine: str, devices: int) -> dict[str, Any]:
    """A run without a stop; on several devices the same in two launches too, and with ranks in bfloat16."""
    os.chdir(folder)
    ranks = devices if engine == "torch" else 1  # in JAX one process has all devices
    launches: list[tuple[str, int, *tuple[str, ...]]] = [("whole", NEVER)]
    if devices > 1:
        launches += [("parts", STOP_AT), ("parts", NEVER)]
    if ranks > 1:
        launches += [("bfloat16", NEVER, "engine.precision=bfloat16")]
    for each in launches:
        codes = launch(ranks, lambda: run(engine, *each))  # noqa: B023
        assert codes == [0] * ranks, codes
    return {path.name: outcome(path) | asked(path) for path in Path("runs").iterdir()}


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))))  # noqa: T201

"""Two runs -> where they differ: checkpoints bit for bit, and the figures of their events.

Every tensor is compared by its bits, the run's state and figures by their values, without those that are measured by a
clock. A figure that was written twice must be the same both times.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

from safetensors.numpy import load_file

from trivium.files import hash_file
from trivium.model.folder import saved_by
from trivium.run.events import read_events
from trivium.run.folder import Checkpoint

FIGURES = ("step", "evaluated", "stage", "ended_early", "skipped", "spiked")
MEASURED = (  # by a clock, or of the process
    *("time", "seconds", "waited", "tokens_per_second", "flops_per_second", "mfu", "training_seconds", "memory"),
    *("slowest_rank", "slowest_seconds", "median_seconds", "compilations", "device_memory"),
)


@dataclass(slots=True)
class Comparison:
    """How much was compared, and what differs."""

    tensors: int = 0  # of token files: files
    figures: int = 0
    differences: list[str] = field(default_factory=list)

    def check(self, what: str, one: object, other: object) -> None:
        if one != other:
            self.differences.append(f"{what}: {shorten(one)} and {shorten(other)}")


def shorten(value: object) -> str:
    """A value as text, of a line or two."""
    shown = json.dumps(value, default=str)
    return shown if len(shown) < 200 else f"{shown[:200]} ..."


def compare_checkpoints(found: Comparison, one: Checkpoint, other: Checkpoint) -> None:
    """Compare what the engine saved bit by bit, and the run's state but for times and for what is kept."""
    fault = other.verify()
    if fault is not None:
        found.differences.append(fault)
        return
    ours, theirs = saved_bits(one.engine), saved_bits(other.engine)
    found.tensors += sum("/" in name for name in theirs)
    for name in sorted(ours.keys() | theirs.keys()):
        found.check(f"{other.path} {name}", ours.get(name), theirs.get(name))
    states = [dict(flat(state_of(checkpoint))) for checkpoint in (one, other)]
    found.figures += len(states[1])
    for key in sorted(states[0].keys() | states[1].keys()):
        found.check(f"{other.path}/state.json {key}", states[0].get(key), states[1].get(key))


def state_of(checkpoint: Checkpoint) -> dict[str, Any]:
    """A checkpoint's state without what a clock measured, where the run lives, and how checkpoints are kept."""
    state = checkpoint.state()
    del state["config"]["checkpoint"], state["config"]["run"], state["meter"]["training_seconds"]
    return state


def flat(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Every value of nested tables with its path."""
    items: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    else:
        yield key, value
    for name, inner in items:
        yield from flat(inner, f"{key}.{name}")


def saved_bits(engine: Path) -> dict[str, str]:
    """A hash of every tensor that an engine saved, as `file/name`, and of the texts beside them."""
    texts = {path.name: hash_file(path) for path in engine.glob("*.json")}
    if saved_by(engine) == "jax":
        from trivium.engine.jax.state import array_hashes

        return texts | array_hashes(engine)
    return texts | {
        f"{path.name}/{name}": blake2b(f"{array.dtype} {array.shape}".encode() + array.tobytes()).hexdigest()
        for path in engine.glob("*.safetensors")
        for name, array in load_file(path).items()
    }


def compare_figures(found: Comparison, calm: Path, disturbed: Path) -> None:
    """Compare every loss, evaluation and stage that was written; a run whose folder was lost has those since then."""
    ours, theirs = set(figures_in(calm)), set(figures_in(disturbed))
    first = next((event["step"] for event in read_events(disturbed) if event["event"] == "started"), 0)
    found.figures += len(theirs)
    for step, kind, figures in sorted(theirs - ours):
        found.differences.append(f"{disturbed}: {kind} at {step} is not in the other: {shorten(figures)}")
    for step, kind, figures in sorted(ours - theirs):
        if step > first:
            found.differences.append(f"{disturbed}: has no such {kind} at {step}: {shorten(figures)}")


def figures_in(events: Path) -> Iterator[tuple[int, str, str]]:
    """The step, the kind and the text of every event that has figures, without what a clock measured."""
    for event in read_events(events):
        if event["event"] in FIGURES:
            kept = {key: value for key, value in event.items() if key not in MEASURED}
            yield event["step"], event["event"], json.dumps(kept, sort_keys=True)

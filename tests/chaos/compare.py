"""Two folders of separately started commands -> where they differ: a run's checkpoints and events, or plain files.

Every tensor of every checkpoint that the disturbed run has kept is compared by its bits, the run's state and figures by
their values, without those that are measured by a clock. A figure that was written twice must be the same both times.
"""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

from safetensors.numpy import load_file

from trivium.files import hash_file
from trivium.model.folder import saved_by
from trivium.run.events import read_events
from trivium.run.folder import NAME, Checkpoint, RunFolder

FIGURES = ("step", "evaluated", "stage", "skipped", "spiked")
MEASURED = (  # by a clock, or of the process
    *("time", "seconds", "waited", "tokens_per_second", "flops_per_second", "mfu", "training_seconds", "memory"),
    *("slowest_rank", "slowest_seconds", "median_seconds", "compilations"),
)
UNFINISHED = re.compile(r"\.(?!lock$)|.*\.draft|.*\.tmp|damaged-")  # names that no finished command leaves behind


@dataclass(slots=True)
class Comparison:
    """How much was compared, and what differs."""

    tensors: int = 0  # of token files: files
    figures: int = 0
    differences: list[str] = field(default_factory=list)

    def check(self, what: str, one: object, other: object) -> None:
        if one != other:
            self.differences.append(f"{what}: {shorten(one)} and {shorten(other)}")

    def check_tidy(self, folder: Path) -> None:
        self.differences += [f"{path}: is left over" for path in leftovers(folder)]


def shorten(value: object) -> str:
    """A value as text, of a line or two."""
    shown = json.dumps(value, default=str)
    return shown if len(shown) < 200 else f"{shown[:200]} ..."


def compare_folders(calm: Path, disturbed: Path) -> Comparison:
    """Compare the token files of two folders byte by byte, and the texts that describe them."""
    found = Comparison()
    ours, theirs = (hashes_in(folder / "out") for folder in (calm, disturbed))
    found.tensors = len(ours)
    found.check("files", sorted(ours), sorted(theirs))
    for name in sorted(ours.keys() & theirs.keys()):
        found.check(name, ours[name], theirs[name])
    found.check_tidy(disturbed / "out")
    return found


def hashes_in(folder: Path) -> dict[str, str]:
    """A hash of every file in a folder, by name."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {path.relative_to(folder).as_posix(): hash_file(path) for path in files}


def leftovers(folder: Path) -> Iterator[Path]:
    """Drafts, and half or damaged folders."""
    for path in sorted(folder.rglob("*")):
        if UNFINISHED.match(path.name) or (NAME.fullmatch(path.name) and not (path / "COMPLETE").is_file()):
            yield path


def compare_runs(calm: Path, disturbed: Path) -> Comparison:
    """Compare a run with one that kept every checkpoint: all that it has kept, in both its places, and its figures."""
    found = Comparison()
    whole = RunFolder(calm / "runs/run")
    plans = [json.loads((folder / "runs/run/plan.json").read_text()) for folder in (calm, disturbed)]
    found.check("plan.json", *plans)
    for place in ("runs", "copy"):
        if not (disturbed / place).exists():
            continue
        kept = RunFolder(disturbed / place / "run").checkpoints()
        missing = kept_for_good(plans[0], kept[-1]) - {each.step for each in kept}
        # What the run's own folder had when it was lost is in the second place alone.
        if missing and (place == "copy" or not (disturbed / "copy").exists()):
            found.differences.append(f"{disturbed / place}: has no checkpoints of {sorted(missing)}")
        for checkpoint in kept:
            compare_checkpoints(found, whole.checkpoint(checkpoint.path.name), checkpoint)
        found.check_tidy(disturbed / place)
    found.check_tidy(disturbed / "cache")
    compare_figures(found, whole.events, disturbed / "runs/run/events.jsonl")
    return found


def kept_for_good(plan: dict[str, Any], last: Checkpoint) -> set[int]:
    """The steps whose checkpoints stay: where stages begin, milestones, and the end."""
    milestones = last.state()["config"]["checkpoint"].get("keep_every") or plan["total_steps"]
    starts = {stage["start"] for stage in plan["stages"] if stage["start"]}
    return starts | set(range(milestones, plan["total_steps"], milestones)) | {plan["total_steps"]}


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
    """A checkpoint's state without what a clock measured, and without how checkpoints are kept."""
    state = checkpoint.state()
    del state["config"]["checkpoint"], state["meter"]["training_seconds"]
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
        from tests.engine.jax.saved import array_hashes

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

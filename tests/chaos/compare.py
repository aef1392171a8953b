"""Two folders of separately started commands -> where they differ: a run's checkpoints and events, or plain files.

Every checkpoint that the disturbed run has kept is compared, and everything that it has left behind is found.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trivium.files import hash_file
from trivium.prove.compare import Comparison, compare_checkpoints, compare_figures
from trivium.run.folder import NAME, Checkpoint, RunFolder

UNFINISHED = re.compile(r"\.(?!lock$)|.*\.draft|.*\.tmp|damaged-")  # names that no finished command leaves behind


def compare_folders(calm: Path, disturbed: Path) -> Comparison:
    """Compare the token files of two folders byte by byte, and the texts that describe them."""
    found = Comparison()
    ours, theirs = (hashes_in(folder / "out") for folder in (calm, disturbed))
    found.tensors = len(ours)
    found.check("files", sorted(ours), sorted(theirs))
    for name in sorted(ours.keys() & theirs.keys()):
        found.check(name, ours[name], theirs[name])
    check_tidy(found, disturbed / "out")
    return found


def hashes_in(folder: Path) -> dict[str, str]:
    """A hash of every file in a folder, by name."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {path.relative_to(folder).as_posix(): hash_file(path) for path in files}


def check_tidy(found: Comparison, folder: Path) -> None:
    found.differences += [f"{path}: is left over" for path in leftovers(folder)]


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
        check_tidy(found, disturbed / place)
    check_tidy(found, disturbed / "cache")
    compare_figures(found, whole.events, disturbed / "runs/run/events.jsonl")
    return found


def kept_for_good(plan: dict[str, Any], last: Checkpoint) -> set[int]:
    """The steps whose checkpoints stay: where stages begin, milestones, and the end."""
    milestones = last.state()["config"]["checkpoint"].get("keep_every") or plan["total_steps"]
    starts = {stage["start"] for stage in plan["stages"] if stage["start"]}
    return starts | set(range(milestones, plan["total_steps"], milestones)) | {plan["total_steps"]}

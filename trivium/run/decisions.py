"""decisions.jsonl: what was decided while a run went on, typed and append-only.

The config and its decisions give the run again. One line a decision, on the disk before the first step that it decides
is taken. This module owns the schema (a class for each kind), the writer and the one reader. A decision holds from its
step on. It takes the place of earlier entries at later steps, and of its kind at its own: those were made by a launch
whose steps were lost. A batch size is planned with from the first step on; a stage's end is entered into the plan when
a launch comes to it, so that one that takes steps again plans them as they were planned before it.
"""

import json
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, with_config

from trivium.config.schema import Config
from trivium.config.stages import MOST_ROWS
from trivium.errors import ResumeError
from trivium.files import draft, flush_folder, parse_json
from trivium.run.folder import CORRUPT, Checkpoint, RunFolder, written_to

LARGEST_FILE = 4 << 20  # bytes; a decision has some hundred
LARGEST_STEP = 2**53

Step = Annotated[int, Field(strict=True, ge=0, le=LARGEST_STEP)]
Rows = Annotated[int, Field(strict=True, ge=1, le=MOST_ROWS)]


@with_config(ConfigDict(extra="forbid"))
@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Something that was decided for the steps from `step` on."""

    kind: ClassVar[str] = ""
    step: Step

    def line(self) -> str:
        """For people, in a few words."""
        return f"from step {self.step:,} on: {self.kind}"

    def is_before(self, step: int) -> bool:
        """Whether it was made before a step was reached, so that a run that begins there as another has it too."""
        return self.step < step


@with_config(ConfigDict(extra="forbid"))
@dataclass(frozen=True, slots=True, kw_only=True)
class BatchResized(Decision):
    """The stage of this step has another batch size from it on, to the stage's end."""

    kind: ClassVar[str] = "batch_size"
    size: Rows  # of a step, on all ranks

    def line(self) -> str:
        """`from step 4,000 on: 7,680 rows in a step, to the stage's end`."""
        return f"from step {self.step:,} on: {self.size:,} rows in a step, to the stage's end"


@with_config(ConfigDict(extra="forbid"))
@dataclass(frozen=True, slots=True, kw_only=True)
class StageEnded(Decision):
    """The stage of the step before this one ends here, since its figure was reached."""

    kind: ClassVar[str] = "stage_end"
    until: Annotated[str, Field(strict=True, min_length=1, max_length=1000)]  # the rule that the stage had
    figure: Annotated[float, Field(allow_inf_nan=False)]  # at this step

    def line(self) -> str:
        """`at step 400: the stage ends, with validation loss of code below 1.2 (1.183)`."""
        return f"at step {self.step:,}: the stage ends, with {self.until} ({self.figure:.4g})"

    def is_before(self, step: int) -> bool:
        """As the stage's last step is, at its end."""
        return self.step <= step


DECISIONS = (StageEnded, BatchResized)  # in the order in which they are made at one step
KINDS: dict[str, type[Decision]] = {kind.kind: kind for kind in DECISIONS}
_CHECKERS: dict[str, TypeAdapter[Decision]] = {name: TypeAdapter(kind) for name, kind in KINDS.items()}


def in_force(decisions: Iterable[Decision]) -> list[Decision]:
    """The decisions that hold, by step."""
    holding: list[Decision] = []
    for new in decisions:
        kept = [each for each in holding if each.step < new.step or (each.step == new.step and each.kind != new.kind)]
        holding = [*kept, new]
    return sorted(holding, key=lambda each: (each.step, list(KINDS).index(each.kind)))


def next_end(decisions: Iterable[Decision], step: int) -> StageEnded | None:
    """The end of a stage that was decided, and that a launch at a step has yet to come to."""
    coming = (each for each in in_force(decisions) if isinstance(each, StageEnded) and each.step > step)
    return next(coming, None)


def known_at(decisions: Sequence[Decision], step: int) -> tuple[Decision, ...]:
    """What a launch at a step plans with, in the order in which it was decided: all up to the next end of a stage."""
    end = next_end(decisions, step)
    return tuple(each for each in decisions if end is None or each.step < end.step)


def as_plain(decisions: Iterable[Decision]) -> list[dict[str, Any]]:
    """Decisions as plain values, for a line, a checkpoint and other ranks."""
    return [{"decision": each.kind, **asdict(each)} for each in decisions]


def from_plain(records: object, where: str) -> tuple[Decision, ...]:
    """Decisions from plain values; ResumeError where one is not a decision."""
    if not isinstance(records, list):
        raise ResumeError(f"{where}: {CORRUPT}. Put it back.")
    found = []
    for number, record in enumerate(records, 1):
        kind = KINDS.get(str(record.get("decision"))) if isinstance(record, dict) else None
        if kind is None:
            raise ResumeError(f"{where}, entry {number}: is not a decision that this version knows. Put it back.")
        try:
            found.append(
                _CHECKERS[kind.kind].validate_python({key: record[key] for key in record if key != "decision"})
            )
        except ValidationError as error:
            reason = error.errors()[0]
            what = f"{'.'.join(map(str, reason['loc']))}: {reason['msg']}"
            raise ResumeError(f"{where}, entry {number}: {what}. Put it back.") from None
    return tuple(found)


def read_decisions(path: Path) -> tuple[Decision, ...]:
    """Every decision of a file, in the order in which they were made; what a kill has truncated was never one."""
    try:
        with open(path, "rb") as file:
            content = file.read(LARGEST_FILE + 1)
    except OSError as error:
        raise ResumeError(f"{path}: cannot be read: {error.strerror}. Put it back.") from None
    if len(content) > LARGEST_FILE:
        raise ResumeError(f"{path}: has more than {LARGEST_FILE:,} bytes, which no run's decisions have. Put it back.")
    try:
        records = [parse_json(line) for line in content.split(b"\n")[:-1]]
    except ValueError:
        raise ResumeError(f"{path}: {CORRUPT}. Put it back.") from None
    return from_plain(records, str(path))


def keep_decisions(folder: RunFolder, decisions: Sequence[Decision]) -> None:
    """Append what the folder's file does not have yet; on the disk when this returns."""
    path = folder.decisions
    known = read_decisions(path) if path.exists() else ()
    if not decisions or tuple(decisions) == known:
        return
    if tuple(decisions[: len(known)]) != known:  # another launch has decided something since this one was planned
        raise ResumeError(f"{path}: has other decisions than when this launch was planned. Start it again.")
    lines = [json.dumps(each).encode() + b"\n" for each in as_plain(decisions[len(known) :])]
    with written_to(folder.path):
        folder.path.mkdir(parents=True, exist_ok=True)
        with open(path, "ab") as file:
            file.truncate(_whole_bytes(path))  # what a kill has left of a line
            file.write(b"".join(lines))
            file.flush()
            os.fsync(file.fileno())
        flush_folder(folder.path)


def _whole_bytes(path: Path) -> int:
    """The bytes of a file up to the end of its last whole line."""
    return path.read_bytes().rfind(b"\n") + 1


def copy_decisions(folder: RunFolder, target: RunFolder) -> None:
    """Bring a second place's decisions up to those of a run, whole or not at all."""
    if not folder.decisions.is_file():
        return
    content = folder.decisions.read_bytes()
    if not target.decisions.is_file() or target.decisions.read_bytes() != content:
        with draft(target.decisions) as file:
            file.write(content)


def run_decisions(*places: RunFolder) -> tuple[Decision, ...]:
    """What was decided in a run: by its file, else by its last checkpoint; in the first of the places that has one."""
    for place in places:
        if place.decisions.is_file():
            return read_decisions(place.decisions)
        for checkpoint in reversed(place.checkpoints()):
            with suppress(ResumeError):  # a damaged one is set aside later
                return checkpoint_decisions(checkpoint)
    return ()


def checkpoint_decisions(checkpoint: Checkpoint) -> tuple[Decision, ...]:
    """The decisions that a checkpoint keeps; one of an earlier version keeps none."""
    return from_plain(checkpoint.state().get("decisions", []), str(checkpoint.path))


def run_places(config: Config) -> tuple[RunFolder, ...]:
    """Where a config's run is, and its second place where it has one."""
    parents = [config.run.folder, *([] if config.checkpoint.copy_to is None else [config.checkpoint.copy_to])]
    return tuple(RunFolder(Path(parent) / (config.run.name or "run")) for parent in parents)

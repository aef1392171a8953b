"""A run's folder -> what a page shows: events in columns, the plan, the config, the lineage.

Reads only what was appended since it last looked, so that a page can follow a run. A line that a kill has truncated is
skipped; where a run resumed, what came after the checkpoint is forgotten and its last record stays.
"""

import re
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, NotRequired, TypeVar, cast

from pydantic import TypeAdapter
from typing_extensions import TypedDict  # pydantic cannot check typing's before Python 3.12

from trivium.errors import ResumeError, UsageError
from trivium.files import read_json
from trivium.report.columns import Columns
from trivium.report.plan_file import refuse_other_plan
from trivium.run.events import (
    LONGEST_LINE,
    Ended,
    Evaluated,
    Event,
    Failed,
    Sampled,
    Scored,
    Skipped,
    Spiked,
    Started,
    StepTaken,
    as_event,
    event_lines,
    parse_event,
)
from trivium.run.folder import RunFolder

Record = dict[str, Any]
Kind = TypeVar("Kind", bound=Event)
Measured = TypeVar("Measured", Evaluated, Scored)
# Of these kinds only what led to the present is shown; others, such as saves, are history and stay.
UNDONE_BY_RESUME: tuple[type[Event], ...] = (Evaluated, Scored, Sampled, Spiked, Skipped)
TAKEN_ONCE = (Evaluated, Scored, Sampled)  # at a step: the last one counts
SHOWN_STATE = {"stage_name", "world_size", "validation"}
ROWS_FILE = re.compile(r"rows/step-\d{8}\.json")  # no other path from an event is opened


class KeptPiece(TypedDict):
    """A piece of a row, as far as a page shows it."""

    document: int
    start: NotRequired[int]
    stop: NotRequired[int]
    text: NotRequired[str | None]


class KeptRow(TypedDict):
    """One row of a step that went wrong."""

    source: str
    pieces: list[KeptPiece]
    row: NotRequired[int]
    loss: NotRequired[float | None]


KEPT_ROWS = TypeAdapter(list[KeptRow])


class Logged(NamedTuple):
    """An event, and when it was written: seconds since 1970."""

    event: Event
    time: float


@dataclass
class EventLog:
    """Everything that happened in a run, as far as it is written; steps are in columns, a column for each figure."""

    steps: Columns = field(default_factory=Columns)
    kinds: dict[type[Event], list[Logged]] = field(default_factory=dict)
    first_time: float | None = None
    last_time: float | None = None

    def of(self, kind: type[Kind]) -> list[Kind]:
        return [cast(Kind, logged.event) for logged in self.logged(kind)]

    def measured(self, kind: type[Measured]) -> list[Measured]:
        """Evaluations or scores of the weights; of their average where that alone was measured at the last step."""
        events = self.of(kind)
        averaged = all(event.averaged for event in events if event.step == events[-1].step)
        return [event for event in events if event.averaged == averaged]

    def of_average(self, kind: type[Measured]) -> list[Measured]:
        """Those of the average, where the weights were measured too."""
        first = self.measured(kind)
        return [event for event in self.of(kind) if event.averaged and not first[0].averaged]

    def logged(self, *kinds: type[Event]) -> list[Logged]:
        """The events of some kinds with their times, one kind after the other."""
        return [logged for kind in kinds for logged in self.kinds.get(kind, [])]

    @property
    def end(self) -> Ended | None:
        """How the last launch ended; None while it runs, or where it was killed."""
        ended = self.of(Ended)
        return ended[-1] if ended else None

    @property
    def resumes(self) -> list[Started]:
        """The launches that resumed from a checkpoint."""
        return [event for event in self.of(Started) if event.resumed]

    def after(self, past: "EventLog", last: int) -> "EventLog":
        """The same with the figures of another's steps up to `last`; launches and saves stay one's own."""
        kinds = dict(self.kinds)
        for kind in UNDONE_BY_RESUME:
            again = {_occasion(event) for event in self.of(kind)}
            shared = [each for each in past.logged(kind) if each.event.step <= last]
            kinds[kind] = [each for each in shared if _occasion(each.event) not in again] + self.logged(kind)
        return EventLog(self.steps.after(past.steps, last), kinds, self.first_time, self.last_time)

    def add(self, record: Record) -> None:
        """Add one event; one that lacks a field, or has one of another type, is skipped."""
        is_step = record["event"] == StepTaken.kind
        event = None if is_step else as_event(record)
        if event is None and not is_step:
            return
        self.last_time = float(record.get("time") or self.last_time or 0.0)
        self.first_time = self.last_time if self.first_time is None else self.first_time
        if event is None:
            self.steps.append(record["step"], _figures(record))
        else:
            self._add(Logged(event, self.last_time))

    def _add(self, logged: Logged) -> None:
        event, kind = logged.event, type(logged.event)
        if isinstance(event, Started):
            self.steps.cut(event.step)
            self.kinds[Ended], self.kinds[Failed] = [], []
            for undone in UNDONE_BY_RESUME:
                self.kinds[undone] = [each for each in self.logged(undone) if each.event.step <= event.step]
        if isinstance(event, TAKEN_ONCE):
            same = _occasion(event)
            self.kinds[kind] = [each for each in self.logged(kind) if _occasion(each.event) != same]
        self.kinds.setdefault(kind, []).append(logged)


def _occasion(event: Event) -> tuple[int, str, bool]:
    """What happens once: at a step the figures of each stage that meets there, and a text for each prompt.

    Figures of the weights and of their average are two.
    """
    match event:
        case Scored() if event.harness:  # tasks that were asked later, once or more often, beside our own
            return event.step, "\0".join([event.stage, event.harness, *event.scores]), event.averaged
        case Evaluated() | Scored():
            return event.step, event.stage, event.averaged
        case Sampled():
            return event.step, event.prompt, False
        case _:
            return event.step, "", False


def _figures(record: Record) -> dict[str, float]:
    """Every number of a step by its field's name, those of tables as `loss_by_source/web`."""
    figures: dict[str, float] = {}
    for name, value in record.items():
        if isinstance(value, dict):
            figures |= {f"{name}/{key}": float(each) for key, each in value.items() if isinstance(each, int | float)}
        elif isinstance(value, int | float) and name != "step":
            figures[name] = float(value)
    return figures


class RunFiles:
    """The files of one run, read as far as they are written."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = EventLog()
        self.plan: Record = {}
        self.config: Record = {}
        self.config_text = ""
        self.lineage: Any = None
        self.checkpoints: list[Record] = []
        self.rows: dict[str, list[KeptRow]] = {}
        self.read_mark: tuple[tuple[int, int], ...] = ()  # the mark of what has been read
        self._read_bytes = 0
        self.update()

    @property
    def name(self) -> str:
        return str(self.plan.get("run") or self.folder.name)

    def mark(self) -> tuple[tuple[int, int], ...]:
        """Changes whenever one of the files does."""
        names = ("events.jsonl", "plan.json", "config.toml", "lineage.json")
        found = [self.folder / name for name in names if (self.folder / name).is_file()]
        return tuple((path.stat().st_size, path.stat().st_mtime_ns) for path in found)

    def update(self) -> None:
        """Read what is new."""
        mark = self.mark()
        config, lineage = self.folder / "config.toml", self.folder / "lineage.json"
        self.lineage = self._json("lineage.json", {"run": str, "step": int}) if lineage.is_file() else None
        self.plan = self._json("plan.json", {"stages": list})
        self.config_text = config.read_text(encoding="utf-8", errors="replace") if config.is_file() else ""
        self.config = _toml(config, self.config_text)
        self.checkpoints = _states(self.folder)
        if (self.folder / "events.jsonl").is_file():
            self._read_events(self.folder / "events.jsonl")
        spiked, skipped = self.log.of(Spiked), self.log.of(Skipped)
        for name in (*(event.rows for event in spiked), *(event.rows for event in skipped)):
            self._read_rows(name)
        self.read_mark = mark

    def _read_rows(self, name: object) -> None:
        """The documents in the rows of a step that went wrong, where the run kept them."""
        if isinstance(name, str) and ROWS_FILE.fullmatch(name) and name not in self.rows:
            self.rows[name] = []
            with suppress(OSError, ValueError):  # where the file is gone or truncated the page shows the step alone
                self.rows[name] = KEPT_ROWS.validate_python(read_json(self.folder / name))

    def _json(self, name: str, kinds: Mapping[str, type]) -> Any:
        path = self.folder / name
        if not path.is_file():
            what = f"has no {name}. Give a run's folder, such as runs/small."
            if self.lineage is not None:
                what = "is a fork that has not been started. Start it first: trivium train."
            raise UsageError(f"{self.folder}: {what}")
        try:
            found = read_json(path)
            if not isinstance(found, dict) or not all(type(found.get(key)) is kind for key, kind in kinds.items()):
                raise ValueError(f"it lacks {', '.join(kinds)}")
            if name == "plan.json":
                refuse_other_plan(found)
            return found
        except ValueError as error:
            what = f"is not what a run writes: {error}. It is written when the run starts: resume it once."
            raise UsageError(f"{path}: {what}") from None

    def _read_events(self, path: Path) -> None:
        if path.stat().st_size < self._read_bytes:  # another run has taken the folder
            self.log, self._read_bytes = EventLog(), 0
        with open(path, "rb") as file:
            file.seek(self._read_bytes)
            for line in event_lines(file):
                if not line.endswith(b"\n") and len(line) < LONGEST_LINE:
                    break  # still being written, or truncated; the next launch ends it
                self._read_bytes += len(line)
                record = parse_event(line)
                if record is not None:
                    self.log.add(record)


def _states(folder: Path) -> list[Record]:
    """The states of a run's checkpoints; those that cannot be read are skipped."""
    states: list[Record] = []
    for checkpoint in RunFolder(folder).checkpoints():
        with suppress(ResumeError):
            state = checkpoint.state()
            if type(state.get("step")) is int and state.keys() >= SHOWN_STATE:
                states.append(state)
    return states


def _toml(path: Path, text: str) -> Record:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path}: is not TOML: {error}. Put back what the run was started with.") from None

"""A run's folder -> what a page shows: events in columns, the plan, the config, the lineage.

Reads only what was appended since it last looked, so that a page can follow a run. A line that a kill has torn is
passed over; where a run resumed, what came behind the checkpoint is forgotten and its last record stays.
"""

import json
import re
import tomllib
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trivium.errors import ResumeError, UsageError
from trivium.report.columns import Columns
from trivium.run.folder import RunFolder

Record = dict[str, Any]
SCALARS = (
    "loss",
    "mean_loss",
    "lr_multiplier",
    "grad_norm",
    "tokens",
    "loss_tokens",
    "seconds",
    "waited",
    "tokens_per_second",
    "mfu",
    "flops",
    "training_seconds",
    "memory",
    "time",
)
TABLES = ("lr", "loss_by_source", "loss_tokens_by_source", "epochs", "extra")
# Kinds of which only what led to the present is shown; the rest, such as saves, is history and stays.
UNDONE_BY_RESUME = ("evaluated", "scored", "sampled", "spiked", "skipped")
TAKEN_ONCE = ("evaluated", "scored", "sampled")  # at a step: the last one counts
# Without these an event is of another program, or was changed by hand, and is passed over.
NEEDED = {
    "evaluated": ("loss", "bits_per_byte", "loss_by_source", "bits_per_byte_by_source", "seconds"),
    "scored": ("scores", "overall"),
    "saved": ("reason", "bytes", "seconds"),
    "save_failed": ("reason", "why"),
    "stage": ("name", "changes"),
    "preempted": ("signal",),
    "said": ("text",),
    "ended": ("finished",),
}
KEPT_ROWS = re.compile(r"rows/step-\d{8}\.json")  # no other path from an event is opened


@dataclass
class EventLog:
    """Everything that happened in a run, as far as it is written."""

    steps: Columns = field(default_factory=Columns)
    kinds: dict[str, list[Record]] = field(default_factory=dict)
    first_time: float | None = None
    last_time: float | None = None

    def of(self, kind: str) -> list[Record]:
        """The events of a kind, in order."""
        return self.kinds.get(kind, [])

    @property
    def end(self) -> Record | None:
        """How the last launch ended; None while it goes on, or where it was killed."""
        ended = self.of("ended")
        return ended[-1] if ended else None

    @property
    def resumes(self) -> list[Record]:
        """The launches that went on from a checkpoint."""
        return [event for event in self.of("started") if event.get("resumed")]

    def after(self, past: "EventLog", last: int) -> "EventLog":
        """The same with the figures of another's steps up to `last`; launches and saves stay one's own."""
        kinds = dict(self.kinds)
        for kind in UNDONE_BY_RESUME:
            again = {_occasion(event) for event in self.of(kind)}
            shared = [event for event in past.of(kind) if event["step"] <= last and _occasion(event) not in again]
            kinds[kind] = shared + self.of(kind)
        return EventLog(self.steps.after(past.steps, last), kinds, self.first_time, self.last_time)

    def take(self, event: Record) -> None:
        """Add one event."""
        kind, step = event["event"], event["step"]
        self.last_time = event.get("time", self.last_time)
        self.first_time = self.last_time if self.first_time is None else self.first_time
        if kind == "step":
            self.steps.append(step, _figures(event))
            return
        if kind == "started":
            self.steps.cut(step)
            self.kinds["ended"] = []
            for undone in UNDONE_BY_RESUME:
                self.kinds[undone] = [each for each in self.of(undone) if each["step"] <= step]
        if kind in TAKEN_ONCE:
            same = _occasion(event)
            self.kinds[kind] = [each for each in self.of(kind) if _occasion(each) != same]
        self.kinds.setdefault(kind, []).append(event)


def _occasion(event: Record) -> tuple[int, str | None, str | None]:
    """What there is one of: at a step figures of each stage that meets there, and a text for each prompt."""
    return event["step"], event.get("stage"), event.get("prompt")


def _figures(event: Record) -> dict[str, float]:
    figures = {name: float(event[name]) for name in SCALARS if event.get(name) is not None}
    for table in TABLES:
        for name, value in (event.get(table) or {}).items():
            figures[f"{table}/{name}"] = float(value)
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
        self.rows: dict[str, list[Record]] = {}
        self._read_bytes = 0
        self.update()

    @property
    def name(self) -> str:
        """The run's name."""
        return str(self.plan.get("run") or self.folder.name)

    def mark(self) -> tuple[tuple[int, int], ...]:
        """Changes whenever one of the files does."""
        names = ("events.jsonl", "plan.json", "config.toml", "lineage.json")
        found = [self.folder / name for name in names if (self.folder / name).is_file()]
        return tuple((path.stat().st_size, path.stat().st_mtime_ns) for path in found)

    def update(self) -> None:
        """Read what is new."""
        config, lineage = self.folder / "config.toml", self.folder / "lineage.json"
        self.lineage = self._json("lineage.json", ("run", "step")) if lineage.is_file() else None
        self.plan = self._json("plan.json", ("stages",))
        self.config_text = config.read_text(encoding="utf-8", errors="replace") if config.is_file() else ""
        self.config = _toml(config, self.config_text)
        self.checkpoints = _states(self.folder)
        if (self.folder / "events.jsonl").is_file():
            self._read_events(self.folder / "events.jsonl")
        for event in (*self.log.of("spiked"), *self.log.of("skipped")):
            self._read_rows(event.get("rows"))

    def _read_rows(self, name: object) -> None:
        """What stood in the rows of a step that went wrong, where the run kept it."""
        if isinstance(name, str) and KEPT_ROWS.fullmatch(name) and name not in self.rows:
            self.rows[name] = []
            with suppress(OSError, ValueError):  # of what is gone or torn the page says the step alone
                self.rows[name] = json.loads((self.folder / name).read_text(encoding="utf-8"))

    def _json(self, name: str, keys: tuple[str, ...]) -> Any:
        path = self.folder / name
        if not path.is_file():
            what = f"has no {name}. Give a run's folder, such as runs/small."
            if self.lineage is not None:
                what = "is a fork that has not been started. Go on with it first: trivium train."
            raise UsageError(f"{self.folder}: {what}")
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            if not isinstance(found, dict) or not all(key in found for key in keys):
                raise ValueError(f"it lacks {', '.join(keys)}")
            return found
        except ValueError as error:
            raise UsageError(
                f"{path}: is not what a run writes: {error}. It is written when the run starts: let it go on once."
            ) from None

    def _read_events(self, path: Path) -> None:
        if path.stat().st_size < self._read_bytes:  # another run has taken the folder
            self.log, self._read_bytes = EventLog(), 0
        with open(path, "rb") as file:
            file.seek(self._read_bytes)
            for line in file:
                if not line.endswith(b"\n"):
                    break  # still being written, or torn; the next launch ends it
                self._read_bytes += len(line)
                event = _event(line)
                if event is not None:
                    self.log.take(event)


def _event(line: bytes) -> Record | None:
    try:
        event = json.loads(line)
    except ValueError:
        return None  # torn by a kill
    known = isinstance(event, dict) and isinstance(event.get("event"), str) and isinstance(event.get("step"), int)
    return event if known and all(key in event for key in NEEDED.get(event["event"], ())) else None


def _states(folder: Path) -> list[Record]:
    """The states of a run's checkpoints; those that are torn are passed over."""
    states = []
    for checkpoint in RunFolder(folder).checkpoints():
        with suppress(ResumeError):
            states.append(checkpoint.state())
    return states


def _toml(path: Path, text: str) -> Record:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path}: is not TOML: {error}. Put back what the run was started with.") from None

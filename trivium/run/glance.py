"""A run's folder -> where the run is, without holding its steps: state, progress, last and best figures.

Only what was appended since the last look is read, and of the steps only the last is parsed: a hundred megabytes of
events take a tenth of a second once, and nothing from then on.
"""

from pathlib import Path
from typing import NamedTuple

from trivium.run.events import (
    LONGEST_LINE,
    Ended,
    EndedEarly,
    Evaluated,
    Event,
    Failed,
    Notice,
    StageBegan,
    Started,
    StepTaken,
    as_event,
    event_lines,
    parse_event,
)
from trivium.run.folder import RunFolder

STEP = b'{"event": "step"'  # as the writer begins such a line
NEW, BROKEN_OFF, RUNNING = "new", "broken off", "running"


class Validated(NamedTuple):
    """An evaluation's figures, and what they were measured on."""

    step: int
    loss: float
    bits_per_byte: float | None
    fingerprint: str


class RunGlance:
    """Where a run is, as far as its events are written."""

    def __init__(self, path: Path) -> None:
        self.folder = RunFolder(path)
        self._forget()

    def _forget(self) -> None:
        self._read_bytes = 0
        self.step = 0
        self.total_steps: int | None = None  # None before its first launch
        self.stage = ""
        self.last: StepTaken | None = None
        self.last_time: float | None = None
        self.why = ""  # a failed launch ended
        self._ended = NEW
        self._evaluations: list[Validated] = []

    @property
    def state(self) -> str:
        """`running`, `finished`, `stopped`, `failed`, `broken off` (killed), or `new`."""
        return RUNNING if self.folder.is_locked else self._ended

    @property
    def best(self) -> Validated | None:
        """The evaluation with the lowest loss, of those on the same rows as the last."""
        same = [each for each in self._evaluations if each.fingerprint == self._evaluations[-1].fingerprint]
        return min(same, key=lambda each: each.loss) if same else None

    def update(self) -> None:
        """Read what is new; a file that is shorter than before is another run's."""
        path = self.folder.events
        try:
            if path.stat().st_size < self._read_bytes:
                self._forget()
            with open(path, "rb") as file:
                file.seek(self._read_bytes)
                step: bytes | None = None
                for line in event_lines(file):
                    if not line.endswith(b"\n") and len(line) < LONGEST_LINE:
                        break  # still being written, or truncated
                    self._read_bytes += len(line)
                    if line.startswith(STEP):
                        step = line
                        continue
                    self._take(step)
                    self._take(line)
                    step = None
                self._take(step)
        except OSError:
            return  # it has none yet, or they are being moved

    def _take(self, line: bytes | None) -> None:
        record = None if line is None else parse_event(line)
        event = None if record is None else as_event(record)
        if record is None or event is None:
            return
        self.last_time = float(record.get("time") or self.last_time or 0.0)
        self.step = event.step if not isinstance(event, Notice) else self.step
        self._note(event)

    def _note(self, event: Event) -> None:
        match event:
            case Started():
                self.total_steps, self._ended, self.why = event.total_steps, BROKEN_OFF, ""
                self._evaluations = [each for each in self._evaluations if each.step <= event.step]
            case StageBegan():
                self.stage = event.name
            case EndedEarly():
                self.total_steps = event.total_steps
            case StepTaken():
                self.stage, self.last = event.stage, event
            case Evaluated() if event.loss is not None and not event.averaged:
                self._evaluations.append(Validated(event.step, event.loss, event.bits_per_byte, event.fingerprint))
            case Failed():
                self._ended, self.why = "failed", event.why
            case Ended():
                self._ended = "finished" if event.finished else "stopped"
            case _:
                pass

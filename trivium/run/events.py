"""events.jsonl: everything that happened in a run, typed and append-only.

This module owns the schema (a class for each kind) and the one reader; `event_file.py` is the writer. A run that was
killed may leave a truncated last line: the next writer ends it, and readers skip what is not an event. A resume writes
the step it starts from; readers keep a step's last record.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, Protocol

from pydantic import TypeAdapter, ValidationError
from typing_extensions import TypedDict  # pydantic cannot check typing's before Python 3.12

from trivium.config.numbers import show_count
from trivium.config.problems import show_optional
from trivium.files import parse_json

LONGEST_LINE = 16 << 20  # bytes
LARGEST_STEP = 2**53  # what a double, and so any reader of JSON, holds exactly
LATEST_TIME = 1e11  # seconds since 1970: the year 5138


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened; `step` counts the updates completed by then."""

    kind: ClassVar[str] = ""
    step: int

    def line(self) -> str:
        """For the terminal, in a few words."""
        return f"step {self.step:,}: {self.kind}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Started(Event):
    """The run starts, or resumes from a checkpoint."""

    kind: ClassVar[str] = "started"
    run: str
    resumed: bool
    total_steps: int
    world_size: int
    versions: Mapping[str, str]
    settings: Mapping[str, Any]  # what may change the bits but not the batches: device, precision, micro-batch
    changes: Mapping[str, str] = field(default_factory=dict)  # keys of the config that differ from before
    lineage: Mapping[str, Any] | None = None  # the run and step that this one was forked from
    machine: Mapping[str, Any] = field(default_factory=dict)  # host, devices, processor, the commit of the config

    def line(self) -> str:
        """`small: resumes at step 4,000 of 10,000`."""
        how = f"resumes at step {self.step:,} of {self.total_steps:,}" if self.resumed else "starts"
        changed = f"; changed: {', '.join(self.changes)}" if self.changes else ""
        threads = self.settings.get("threads")
        with_threads = f", with {threads} CPU thread{'' if threads == '1' else 's'}" if threads else ""
        return f"{self.run}: {how}{with_threads}{changed}"


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsRead(Event):
    """The weights that a fresh run starts from were read."""

    kind: ClassVar[str] = "weights"
    folder: str
    parameters: int
    tensors: int | None = None  # None of a checkpoint, whose engine reads all of its own
    kinds: Mapping[str, int] = field(default_factory=dict)  # parameters by the type that they were stored in
    left_out: Mapping[str, str] = field(default_factory=dict)  # what the files hold and nobody reads, with the reason
    added: Mapping[str, str] = field(default_factory=dict)  # what was not there, with what it is instead
    text: str = ""

    def line(self) -> str:
        """`weights from exported: 21 tensors, 1,234,567 parameters (BF16); added: optimizer state (fresh)`."""
        return self.text


@dataclass(frozen=True, slots=True, kw_only=True)
class StageBegan(Event):
    """A stage's first step is next."""

    kind: ClassVar[str] = "stage"
    stage: int
    name: str
    changes: Mapping[str, tuple[Any, Any]]  # what differs from the stage before

    def line(self) -> str:
        """`step 5: stage long: seq_len 2048 -> 8192, rope absent -> { theta = 500000 }`."""
        shown = {key: [show_optional(value) for value in pair] for key, pair in self.changes.items()}
        changes = ", ".join(f"{key} {old} -> {new}" for key, (old, new) in shown.items())
        return f"step {self.step:,}: stage {self.name}" + (f": {changes}" if changes else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedEarly(Event):
    """A stage ended on its figure; its last step is taken."""

    kind: ClassVar[str] = "ended_early"
    stage: str
    until: str  # the rule
    figure: float
    longest: int  # the stage's steps without that
    total_steps: int  # of the run from here on

    def line(self) -> str:
        """`step 400: stage general ends, with validation loss of code below 1.2 (1.183)`, and how long it might be."""
        how = f"stage {self.stage} ends, with {self.until} ({self.figure:.4g})"
        return f"step {self.step:,}: {how}; it had {self.longest:,} steps at the most"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTaken(Event):
    """One update; `step` is the number of updates completed, this one included."""

    kind: ClassVar[str] = "step"
    stage: str
    loss: float
    mean_loss: float  # debiased running mean
    lr: Mapping[str, float]
    lr_multiplier: float
    grad_norm: float
    tokens: int  # of this step, padding included
    loss_tokens: int
    loss_by_source: Mapping[str, float]
    loss_tokens_by_source: Mapping[str, int]
    epochs: Mapping[str, float]  # of each source, so far
    seconds: float
    waited: float  # seconds of it for data
    tokens_per_second: float
    flops_per_second: float
    mfu: float | None  # of the device's peak, where that is known
    flops: float  # so far
    training_seconds: float  # so far, without the first steps
    percent: float
    memory: int  # bytes of the process, of the rank that is_main
    extra: Mapping[str, float] = field(default_factory=dict)
    figures: Mapping[str, float] = field(default_factory=dict)  # what `Trainer.log` was given
    slowest_rank: int | None = None  # the one that the others wait for, where it lags by a fifth or more
    slowest_seconds: float | None = None  # until it meets the others, a step
    median_seconds: float | None = None
    # Every ten steps: active, reserved and retries since the stage began, the most of any rank; total; predicted.
    device_memory: Mapping[str, int] | None = None
    compilations: int = 0  # made for this step, by an engine that compiles whole steps

    def line(self) -> str:
        """`step 41 (0.4%)  loss 4.1234  lr 3e-04  12.3k tokens/s`."""
        mfu = "" if self.mfu is None else f"  mfu {self.mfu:.1%}"
        gpu = "" if self.device_memory is None else f"  GPU {self.device_memory['active'] / 1e9:.1f} GB"
        kl = "".join(f"{term} {self.extra[term]:.4f}  " for term in ("kl", "distill") if term in self.extra)
        return (
            f"step {self.step:,} ({self.percent:.3g}%)  {self.stage}  loss {self.loss:.4f}  {kl}"
            f"lr {self.lr['matrix']:.3g}  norm {self.grad_norm:.3g}  "
            f"{show_count(self.tokens_per_second)} tokens/s{mfu}{gpu}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped(Event):
    """A step without an update; it counts, so that schedules and data stay aligned."""

    kind: ClassVar[str] = "skipped"
    stage: str
    why: str
    figures: Mapping[str, float] = field(default_factory=dict)  # what `Trainer.log` was given
    rows: str | None = None  # the file that lists the documents of its rows

    def line(self) -> str:
        """`step 41: no update: the loss is nan and the gradient's norm nan (rows/step-00000040.json)`."""
        return f"step {self.step:,}: no update: {self.why}" + (f" ({self.rows})" if self.rows else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Spiked(Event):
    """A step whose loss is far above the stage's recent ones."""

    kind: ClassVar[str] = "spiked"
    stage: str
    loss: float
    limit: float
    rows: str | None = None

    def line(self) -> str:
        """`step 41: the loss spiked to 7.1, over 3.2 (trivium why RUN --step 40)`: steps are counted from 0 there."""
        rows = f" (trivium why RUN --step {self.step - 1})" if self.rows else ""
        return f"step {self.step:,}: the loss spiked to {self.loss:.4f}, over {self.limit:.4f}{rows}"


UNTIL = "as --until says"  # in place of a signal


@dataclass(frozen=True, slots=True, kw_only=True)
class Preempted(Event):
    """The run was told to stop by a signal; it finishes the step and saves."""

    kind: ClassVar[str] = "preempted"
    signal: str

    def line(self) -> str:
        """`step 41: SIGTERM: the step is finished, a checkpoint comes next`; or the launch ends as asked."""
        follows = "this launch ends here" if self.signal == UNTIL else "the step is finished, a checkpoint comes next"
        return f"step {self.step:,}: {self.signal}: {follows}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveFailed(Event):
    """A checkpoint could not be written; the run continues, and tries again."""

    kind: ClassVar[str] = "save_failed"
    why: str
    reason: str

    def line(self) -> str:
        """`step 500: not saved (cadence): No space left on device; the last good checkpoint stays`."""
        return f"step {self.step:,}: not saved ({self.reason}): {self.why}; the last good checkpoint stays"


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated(Event):
    """Validation figures: nats a token and bits a byte, overall and by source; and an evaluator's scores."""

    kind: ClassVar[str] = "evaluated"
    stage: str  # the stage that the engine was in
    loss: float | None  # None where nothing is held out, and the evaluator alone was asked
    bits_per_byte: float | None
    loss_by_source: Mapping[str, float]
    bits_per_byte_by_source: Mapping[str, float | None]
    tokens: int
    seconds: float
    scores: Mapping[str, float] = field(default_factory=dict)
    # Of what the figures were measured on: only those with the same one can be compared. "" where nobody kept it.
    fingerprint: str = ""
    fingerprint_by_source: Mapping[str, str] = field(default_factory=dict)
    loss_by_position: Mapping[str, float] = field(default_factory=dict)  # by the first of a range of positions
    weighted_loss: float | None = None  # by the stage's loss_weight; None where it has none
    averaged: bool = False  # of the average of the weights, not of the weights themselves

    def fingerprint_of(self, source: str) -> str:
        """What a source's figures were measured on; "" where nobody kept it."""
        return self.fingerprint_by_source.get(source, "")

    @classmethod
    def without_validation(cls, step: int, stage: str) -> "Evaluated":
        """An evaluation in which nothing was held out."""
        nothing: dict[str, Any] = {"loss": None, "bits_per_byte": None, "tokens": 0, "seconds": 0.0}
        return cls(step=step, stage=stage, loss_by_source={}, bits_per_byte_by_source={}, **nothing)

    def line(self) -> str:
        """`step 500: validation 3.2100 (web 3.1, code 3.4), accuracy 0.5`."""
        scores = ", ".join(f"{name} {score:.4g}" for name, score in self.scores.items())
        begin = f"step {self.step:,}: {'of the average: ' * self.averaged}"
        if self.loss is None:
            return f"{begin}{scores}"
        by_source = ", ".join(f"{name} {loss:.4f}" for name, loss in self.loss_by_source.items())
        beside = {"weighted": self.weighted_loss, "bits per byte": self.bits_per_byte}
        known = "".join(f", {figure:.4f} {name}" for name, figure in beside.items() if figure is not None)
        return f"{begin}validation {self.loss:.4f}{known} ({by_source}){', ' if scores else ''}{scores}"


class ScoreFigures(TypedDict):
    """A score as plain values, for events and machines."""

    right: int
    questions: int
    chance: float
    score: float
    centred: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored(Event):
    """Scores of tasks, and the mean of the centred ones."""

    kind: ClassVar[str] = "scored"
    scores: Mapping[str, ScoreFigures]
    overall: float
    seconds: float
    fingerprint: str = ""  # of all questions that were asked, as of what an evaluation was measured on
    fingerprint_by_task: Mapping[str, str] = field(default_factory=dict)
    stage: str = ""  # the stage that the engine was in; "" where nobody kept it
    averaged: bool = False  # as of an evaluation
    harness: str = ""  # who asked, such as lm-eval 0.4.13; "" where the tasks are our own
    figures: Mapping[str, float] = field(default_factory=dict)  # metrics of a harness that are no fraction of right

    def fingerprint_of(self, task: str) -> str:
        """The questions that a task's score is of; "" where nobody kept it."""
        return self.fingerprint_by_task.get(task, "")

    def line(self) -> str:
        """`step 500: scores spelling 0.83, arc 0.31 (chance 0.25); centred 0.46`."""
        shown = [
            f"{name} {each['score']:.3f}" + f" (chance {each['chance']:.2f})" * (each["chance"] > 0)
            for name, each in self.scores.items()
        ]
        begin = f"step {self.step:,}: {'of the average: ' * self.averaged}"
        return f"{begin}scores {', '.join(shown)}; centred {self.overall:.3f}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled(Event):
    """A text that the model wrote after a prompt."""

    kind: ClassVar[str] = "sampled"
    prompt: str
    text: str

    def line(self) -> str:
        """`step 500: Once upon a time -> there was`, on one line."""
        return f"step {self.step:,}: {self.prompt!r} -> {self.text!r}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved(Event):
    """A checkpoint is complete."""

    kind: ClassVar[str] = "saved"
    path: str
    bytes: int
    seconds: float
    reason: str

    def line(self) -> str:
        """`step 500: saved (boundary), 12.3 MB in 0.4 s`."""
        return f"step {self.step:,}: saved ({self.reason}), {self.bytes / 1e6:,.1f} MB in {self.seconds:.2f} s"


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice(Event):
    """Something a user should know."""

    kind: ClassVar[str] = "notice"
    text: str

    def line(self) -> str:
        """The text; with a step, once one is taken or the checkpoint is read."""
        return f"step {self.step:,}: {self.text}" if self.step else self.text


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended(Event):
    """The run's last step is taken, or it was stopped."""

    kind: ClassVar[str] = "ended"
    finished: bool
    steps: int
    peak_memory: int
    training_seconds: float
    best: Mapping[str, float]
    world_size: int

    def line(self) -> str:
        """`finished: 10,000 steps, 812.0 s of training (warming up not counted), peak memory of the process 1.2 GB`."""
        how = "finished" if self.finished else "stopped"
        best = "".join(f", best {name} {value:.4f}" for name, value in self.best.items())
        peak = f"peak memory of the process {self.peak_memory / 1e9:.2f} GB"
        seconds = f"{self.training_seconds:.1f} s of training (warming up not counted)"
        return f"{how}: {self.steps:,} steps, {seconds}, {peak}{best}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed(Event):
    """The launch ends with an error, after it had started; one that was killed writes nothing."""

    kind: ClassVar[str] = "failed"
    why: str

    def line(self) -> str:
        """`step 41: failed: CUDA out of memory`."""
        return f"step {self.step:,}: failed: {self.why}"


OF_STEPS = (Started, WeightsRead, StageBegan, EndedEarly, StepTaken, Skipped, Spiked, Preempted)
OF_MODELS = (Evaluated, Scored, Sampled, Saved, SaveFailed, Notice, Failed, Ended)
KINDS = {kind.kind: kind for kind in (*OF_STEPS, *OF_MODELS)}


class Sink(Protocol):
    """Somewhere events go: the file, the terminal, a tracker."""

    def write(self, event: Event) -> None:
        """Take one event."""

    def close(self) -> None:
        """Nothing more will come."""


def event_lines(file: BinaryIO) -> Iterator[bytes]:
    """The lines of an events file; a longer one than any event comes in parts, none of which is an event."""
    return iter(lambda: file.readline(LONGEST_LINE), b"")


def parse_event(line: bytes) -> dict[str, Any] | None:
    """A line's event; None for a line that is not one, such as what a kill has truncated."""
    try:
        event = parse_json(line)
    except ValueError:
        return None
    return event if isinstance(event, dict) and _is_event(event) else None


def _is_event(record: dict[str, Any]) -> bool:
    """Whether a record has what every event has: a kind, a step and a time that can be."""
    kind, step, moment = record.get("event"), record.get("step"), record.get("time", 0.0)
    return (
        isinstance(kind, str)
        and kind in KINDS
        and type(step) is int
        and 0 <= step <= LARGEST_STEP
        and type(moment) in (int, float)
        and 0 <= moment <= LATEST_TIME
    )


def read_events(path: Path) -> Iterator[dict[str, Any]]:
    """Every event of a file, in the order in which they were written."""
    with open(path, "rb") as file:
        yield from filter(None, map(parse_event, event_lines(file)))


def as_event(record: Mapping[str, Any]) -> Event | None:
    """A record as an object of its class; None where a field is missing, as of another version, or of another type."""
    kind = KINDS[record["event"]]
    known = {name: value for name, value in record.items() if name in kind.__dataclass_fields__}
    try:
        return _checker(kind).validate_python(known)
    except ValidationError:
        return None


@cache
def _checker(kind: type[Event]) -> TypeAdapter[Event]:
    return TypeAdapter(kind)

"""A run's figures -> what each stage gained and forgot: validation and scores before and after it."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from trivium.report.read import EventLog
from trivium.run.events import Evaluated, Event, Scored

Record = dict[str, Any]
Kind = TypeVar("Kind", bound=Event)
FIGURES = ("loss", "bits_per_byte")
ALL_TASKS = "all, centred"  # the mean over tasks, in the place of a task's name


@dataclass(frozen=True, slots=True)
class Change:
    """A figure before and after a stage; None where it was not taken."""

    before: float | None
    after: float | None

    @property
    def change(self) -> float | None:
        """After minus before."""
        return None if self.before is None or self.after is None else self.after - self.before


@dataclass(slots=True)
class StageChange:
    """What one stage of one run changed: by source nats a token and bits a byte, by task the score."""

    run: str
    stage: str
    start: int
    end: int  # the step of the last figures
    sources: dict[str, dict[str, Change]] = field(default_factory=dict)
    fingerprints: dict[str, str] = field(default_factory=dict)  # by source, of what its figures were measured on
    other_rows: list[str] = field(default_factory=list)  # sources that were evaluated on other rows earlier in it
    scores: dict[str, Change] = field(default_factory=dict)
    score_fingerprints: dict[str, str] = field(default_factory=dict)  # by task, of the questions that were asked
    other_questions: list[str] = field(default_factory=list)  # tasks that were asked others earlier in it


def stage_changes(label: str, plan: Record, log: EventLog) -> Iterator[StageChange]:
    """One run's stages that have figures: the first and last of each."""
    for stage in (stage for stage in plan["stages"] if stage["start"] is not None):
        start, end = stage["start"], stage["end"]
        evaluated = [event for event in log.measured(Evaluated) if _is_inside(event, start, end)]
        # An evaluation where two stages meet is the end of the one and the start of the other.
        evaluated = [event for event in evaluated if event.step == start or event.stage == stage["name"]]
        scored = [event for event in log.measured(Scored) if _is_inside(event, start, end)]
        if not evaluated and not scored:
            continue
        change = StageChange(label, stage["name"], start, max(event.step for event in (*evaluated, *scored)))
        for source in _names([(event.step, event.loss_by_source) for event in evaluated], start):
            having = [event for event in evaluated if source in event.loss_by_source]
            same = _alike(having, [event.fingerprint_of(source) for event in having])
            change.fingerprints[source] = having[-1].fingerprint_of(source)
            if len(same) < len(having):
                change.other_rows.append(source)
            losses = [(event.step, event.loss_by_source[source]) for event in same]
            bits = [(event.step, event.bits_per_byte_by_source.get(source)) for event in same]
            change.sources[source] = {"loss": _change(losses, start), "bits_per_byte": _change(bits, start)}
        for task in _names([(event.step, event.scores) for event in scored], start):
            asked = [event for event in scored if task in event.scores]
            of_task = _alike(asked, [event.fingerprint_of(task) for event in asked])
            change.score_fingerprints[task] = asked[-1].fingerprint_of(task)
            if len(of_task) < len(asked):
                change.other_questions.append(task)
            change.scores[task] = _change([(event.step, event.scores[task]["score"]) for event in of_task], start)
        scored = [event for event in scored if not event.harness]  # the mean is of the tasks that the run asks
        if len({task for event in scored for task in event.scores}) > 1:
            of_all = _alike(scored, [event.fingerprint for event in scored])
            change.score_fingerprints[ALL_TASKS] = scored[-1].fingerprint
            change.scores[ALL_TASKS] = _change([(event.step, event.overall) for event in of_all], start)
        yield change


def _alike(events: Sequence[Kind], fingerprints: Sequence[str]) -> list[Kind]:
    """The events whose figures were measured on the same as the last one's."""
    return [event for event, each in zip(events, fingerprints, strict=True) if each == fingerprints[-1]]


def _is_inside(event: Event, start: int, end: int | None) -> bool:
    return start <= event.step and (end is None or event.step <= end)


def _names(tables: Sequence[tuple[int, Mapping[str, Any]]], start: int) -> list[str]:
    """What has figures after the stage's start; of a stage that has only begun, what has some at its start."""
    later = [table for step, table in tables if step > start]
    return list(dict.fromkeys(name for table in later or [table for _, table in tables] for name in table))


def _change(figures: Iterable[tuple[int, float | None]], start: int) -> Change:
    """The last figure of the stage's start, and the last of those after it."""
    known = [(step, value) for step, value in figures if value is not None]
    before = [value for step, value in known if step <= start]
    after = [value for step, value in known if step > start]
    return Change(before[-1] if before else None, after[-1] if after else None)

"""A run's figures -> what each stage gained and forgot: validation and scores before and after it."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from trivium.report.read import EventLog

Record = dict[str, Any]
FIGURES = ("loss", "bits_per_byte")


@dataclass(frozen=True, slots=True)
class Change:
    """A figure before and after a stage; None where it was not taken."""

    before: float | None
    after: float | None

    @property
    def change(self) -> float | None:
        """What the stage did to it."""
        return None if self.before is None or self.after is None else self.after - self.before


@dataclass(slots=True)
class StageChange:
    """What one stage of one run did: by source nats a token and bits a byte, by task the score."""

    run: str
    stage: str
    start: int
    end: int  # the step of the last figures
    sources: dict[str, dict[str, Change]] = field(default_factory=dict)
    scores: dict[str, Change] = field(default_factory=dict)


def stage_changes(label: str, plan: Record, log: EventLog) -> Iterator[StageChange]:
    """One run's stages that have figures: the first and last of each."""
    for stage in (stage for stage in plan["stages"] if stage["start"] is not None):
        evaluated, scored = _of_stage(stage, log.of("evaluated")), _of_stage(stage, log.of("scored"))
        if not evaluated and not scored:
            continue
        start = stage["start"]
        end = max(event["step"] for event in (*evaluated, *scored))
        change = StageChange(label, stage["name"], start, end)
        for source in _names(evaluated, start, "loss_by_source"):
            change.sources[source] = {
                figure: _change(evaluated, start, f"{figure}_by_source", source) for figure in FIGURES
            }
        for task in _names(scored, start, "scores"):
            change.scores[task] = _change(scored, start, "scores", task)
        if len(change.scores) > 1:
            change.scores["all, centred"] = _change(scored, start, "overall", None)
        yield change


def _of_stage(stage: Record, events: Sequence[Record]) -> list[Record]:
    """A stage's figures; those that the one before it ended with count for its start, its own behind them."""
    start, end = stage["start"], stage["end"]
    there = [event for event in events if start <= event["step"] and (end is None or event["step"] <= end)]
    return [event for event in there if event["step"] == start or event.get("stage", stage["name"]) == stage["name"]]


def _names(events: Sequence[Record], start: int, table: str) -> list[str]:
    """What has figures behind the stage's start; of a stage that has only begun, those of its start."""
    behind = [event for event in events if event["step"] > start]
    return list(dict.fromkeys(name for event in behind or events for name in event[table]))


def _change(events: Iterable[Record], start: int, table: str, name: str | None) -> Change:
    """The last figure of the stage's start, and the last of those behind it."""
    found = [(event["step"], _figure(event.get(table), name)) for event in events]
    before = [value for step, value in found if step <= start and value is not None]
    after = [value for step, value in found if step > start and value is not None]
    return Change(before[-1] if before else None, after[-1] if after else None)


def _figure(table: Any, name: str | None) -> float | None:
    value: Any = table if name is None or table is None else table.get(name)
    value = value["score"] if isinstance(value, dict) else value
    return None if value is None else float(value)

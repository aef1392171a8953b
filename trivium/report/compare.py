"""Runs' files -> what each stage gained and forgot: validation and scores before and after it, run beside run."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from trivium.errors import UsageError
from trivium.report.read import RunFiles
from trivium.train.events import read_events

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


def compare_runs(folders: Sequence[Path]) -> list[StageChange]:
    """Every stage of every run that has figures."""
    files = [RunFiles(folder) for folder in folders]
    names = [each.name for each in files]
    labels = names if len(set(names)) == len(names) else [str(folder) for folder in folders]
    found = [change for label, each in zip(labels, files, strict=True) for change in stage_changes(label, each)]
    if not found:
        runs = ", ".join(str(folder) for folder in folders)
        what = "nothing was evaluated. Hold something out, and write evaluate = true in the stages that count"
        raise UsageError(f"{runs}: {what}.")
    return found


def stage_changes(label: str, files: RunFiles) -> Iterator[StageChange]:
    """One run's stages: first and last figures of each, as the events have them in order."""
    for stage, events in _by_stage(files):
        evaluated = [event for event in events if event["event"] == "evaluated"]
        scored = [event for event in events if event["event"] == "scored"]
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


def _by_stage(files: RunFiles) -> Iterator[tuple[Record, list[Record]]]:
    """Each stage with its figures; what stands at a boundary counts for both of its sides."""
    stages = [stage for stage in files.plan["stages"] if stage["start"] is not None]
    by_name: dict[str, list[Record]] = {stage["name"]: [] for stage in stages}
    now: str | None = None
    path = files.folder / "events.jsonl"
    for event in read_events(path) if path.is_file() else ():
        kind, step = event["event"], event["step"]
        if kind == "started":
            for kept in by_name.values():
                kept[:] = [each for each in kept if each["step"] <= step]
            now = next((stage["name"] for stage in stages if stage["start"] < step <= (stage["end"] or step)), now)
        elif kind == "stage":
            now = event["name"]
            for each in [each for events in by_name.values() for each in events]:
                if each["step"] == step and now in by_name:
                    by_name[now].append(each)
        elif kind in ("evaluated", "scored") and now in by_name:
            by_name[now].append(event)
    return ((stage, by_name[stage["name"]]) for stage in stages)


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


def compare_json(changes: Sequence[StageChange]) -> list[Record]:
    """For machines."""
    return [asdict(change) for change in changes]


def show_changes(changes: Sequence[StageChange], console: Console) -> None:
    """Print tables of 80 columns: a line for each stage, source and run; runs stand below one another."""
    parts: list[RenderableType] = []
    sources = [(c.stage, source, c.run, figures) for c in changes for source, figures in c.sources.items()]
    if sources:
        table = _table("stage", "source", "run", "nats", "after", "change", "bits/byte", "after")
        for first, second, run, figures in _grouped(sources):
            nats, bits = (_cells(figures[figure], signs=4) for figure in FIGURES)
            table.add_row(*map(Text, (first, second, run, *nats, *bits[:2])))
        parts += [Text("validation before and after each stage", style="bold"), table]
    scores = [(c.stage, task, c.run, change) for c in changes for task, change in c.scores.items()]
    if scores:
        table = _table("stage", "task", "run", "before", "after", "change")
        for first, second, run, score in _grouped(scores):
            table.add_row(*map(Text, (first, second, run, *_cells(score, signs=3))))
        parts += [*([Text()] if parts else []), Text("scores before and after each stage", style="bold"), table]
    console.print(Group(*parts), highlight=False)


def _grouped(lines: Sequence[tuple[str, str, str, Any]]) -> Iterator[tuple[str, str, str, Any]]:
    """Lines of one stage and source together, its runs in their order; names are written once."""
    stages = list(dict.fromkeys(stage for stage, *_ in lines))
    for stage in stages:
        shown_stage = stage
        for what in dict.fromkeys(each[1] for each in lines if each[0] == stage):
            shown_what = what
            for _, _, run, figures in (each for each in lines if each[:2] == (stage, what)):
                yield shown_stage, shown_what, run, figures
                shown_stage = shown_what = ""


def _cells(change: Change, signs: int) -> tuple[str, str, str]:
    def shown(value: float | None, sign: str = "") -> str:
        return "" if value is None else f"{value:{sign}.{signs}f}"

    return shown(change.before), shown(change.after), shown(change.change, "+")


def _table(*headers: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_edge=False, header_style="dim")
    for number, header in enumerate(headers):
        table.add_column(header, justify="left" if number < 3 else "right", overflow="fold", no_wrap=number >= 3)
    return table

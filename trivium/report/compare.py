"""What the stages of runs gained and forgot, run beside run: tables for a terminal, and JSON."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.text import Text

from trivium.errors import UsageError
from trivium.plan.show import plain_table
from trivium.report.changes import FIGURES, Change, StageChange, stage_changes
from trivium.report.read import RunFiles
from trivium.report.run import shown_runs

UNKNOWN = dict.fromkeys(FIGURES, Change(None, None))


@dataclass(frozen=True, slots=True)
class Basis:
    """What figures are measured on, by their names: which rows or questions, and how to tell that they are others."""

    of: Callable[[StageChange], Mapping[str, str]]  # fingerprints
    changed: Callable[[StageChange], Sequence[str]]  # names that had another basis earlier in the stage
    differs: str
    differed: str


ROWS = Basis(
    attrgetter("fingerprints"),
    attrgetter("other_rows"),
    "it was evaluated on other rows than",
    "earlier evaluations of this stage read other rows",
)
QUESTIONS = Basis(
    attrgetter("score_fingerprints"),
    attrgetter("other_questions"),
    "other questions were asked than of",
    "earlier scores of this stage are of other questions",
)


def compare_runs(folders: Sequence[Path]) -> list[StageChange]:
    """Every stage of every run that has figures."""
    runs = shown_runs([RunFiles(folder) for folder in folders])
    found = [change for run in runs for change in stage_changes(run.label, run.plan, run.log)]
    if not found:
        where = ", ".join(str(folder) for folder in folders)
        what = "nothing was evaluated. Hold something out, and write evaluate = true in the stages that count"
        raise UsageError(f"{where}: {what}.")
    return found


def show_changes(changes: Sequence[StageChange], console: Console) -> None:
    """Print tables of 80 columns: a line for each stage, source and run; runs are below one another."""
    parts: list[RenderableType] = []
    sources = [
        (c.stage, source, c.run, figures if _is_comparable(c, source, changes, ROWS) else UNKNOWN)
        for c in changes
        for source, figures in c.sources.items()
    ]
    if sources:
        headers = ("stage", "source", "run", "nats", "after", "change", "bits/byte", "after")
        table = plain_table(*headers, right=tuple(range(3, 8)))
        for first, second, run, figures in _grouped(sources):
            nats, bits = (_cells(figures[figure], signs=4) for figure in FIGURES)
            table.add_row(*map(Text, (first, second, run, *nats, *bits[:2])))
        parts += [Text("validation before and after each stage", style="bold"), table]
        parts += _notes(changes, ROWS)
    scores = [
        (c.stage, task, c.run, change if _is_comparable(c, task, changes, QUESTIONS) else Change(None, None))
        for c in changes
        for task, change in c.scores.items()
    ]
    if scores:
        table = plain_table("stage", "task", "run", "before", "after", "change", right=(3, 4, 5))
        for first, second, run, score in _grouped(scores):
            table.add_row(*map(Text, (first, second, run, *_cells(score, signs=3))))
        parts += [*([Text()] if parts else []), Text("scores before and after each stage", style="bold"), table]
        parts += _notes(changes, QUESTIONS)
    console.print(Group(*parts), highlight=False)


def _is_comparable(change: StageChange, name: str, changes: Sequence[StageChange], basis: Basis) -> bool:
    """Whether figures were measured on the same as in the first run that has figures of the stage and name."""
    return basis.of(change)[name] == basis.of(_first(change, name, changes, basis))[name]


def _first(change: StageChange, name: str, changes: Sequence[StageChange], basis: Basis) -> StageChange:
    return next(each for each in changes if each.stage == change.stage and name in basis.of(each))


def _notes(changes: Sequence[StageChange], basis: Basis) -> Iterator[Text]:
    """Which figures are missing in a table, since they were measured on something else."""
    for change in changes:
        for name in basis.of(change):
            where = f"{change.stage}, {name}, {change.run}"
            if not _is_comparable(change, name, changes, basis):
                other = _first(change, name, changes, basis).run
                yield Text(f"{where}: not shown, for {basis.differs} {other}.")
            elif name in basis.changed(change):
                yield Text(f"{where}: {basis.differed}, and do not count.")


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

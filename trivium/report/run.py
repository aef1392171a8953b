"""A run as a page shows it: its files, a label among others, its sources in one order for all charts."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from trivium.errors import UsageError
from trivium.report.charts import Series, Style
from trivium.report.read import EventLog, KeptRow, RunFiles
from trivium.run.events import Event, Skipped, Started

Record = dict[str, Any]
Kind = TypeVar("Kind", bound=Event)


@dataclass(frozen=True, slots=True)
class ShownRun:
    """One run of a page; without events it is a plan."""

    label: str
    plan: Record
    number: int = 0
    config: Record = field(default_factory=dict)
    config_text: str = ""
    lineage: Any = None
    checkpoints: list[Record] = field(default_factory=list)  # the state of each that is on disk
    rows: dict[str, list[KeptRow]] = field(default_factory=dict)  # of steps that went wrong, by the name of their file
    folder: str = ""
    log: EventLog = field(default_factory=EventLog)
    several: bool = False

    @property
    def sources(self) -> list[str]:
        """Its sources, in the order of the config."""
        known = list(self.plan.get("sources", {}))
        return known + [name for name in self.log.steps.under("loss_by_source") if name not in known]

    @property
    def beginning(self) -> Started | None:
        """Its first launch; a fork's resumes from its parent's checkpoint."""
        return next(iter(self.log.of(Started)), None)

    @property
    def taken(self) -> int:
        """The number of steps taken, skipped ones included."""
        updates: list[int] = self.log.steps.steps[-1:].tolist()
        return max([0, *updates, *(event.step for event in self.log.of(Skipped))])

    @property
    def total_steps(self) -> int:
        """The steps of the plan; where it does not know them all, those known or taken."""
        ends: list[int] = [stage["end"] for stage in self.plan["stages"] if stage["end"] is not None]
        return max(1, self.taken, *ends)

    def label_of(self, what: str) -> str:
        """What a series shows, with the run's name where there are several."""
        return f"{what}, {self.label}" if self.several else what

    def source_series(self, table: str, style: Style = "line") -> list[Series]:
        """A figure that each step has by source, as one series a source."""
        steps = self.log.steps
        return [
            Series(self.label_of(name), *steps.known(f"{table}/{name}"), style=style, source=name, run=self.number)
            for name in self.sources
            if name in steps.under(table)
        ]

    def event_series(
        self,
        label: str,
        events: Sequence[Kind],
        pick: Callable[[Kind], float | None],
        source: str | None = None,
        measured_on: Callable[[Kind], str] = lambda event: "",
    ) -> list[Series]:
        """A figure of events at their steps; a new line begins where it is measured on others, or a step has two."""
        lines: list[list[tuple[int, float]]] = []
        last: tuple[str, int] | None = None
        for event in events:
            value, now = pick(event), measured_on(event)
            if value is not None:
                if last is None or now != last[0] or event.step == last[1]:
                    lines.append([])
                last = now, event.step
                lines[-1].append((event.step, value))
        settings: Record = {"style": "marked", "source": source, "run": self.number}
        return [Series.of(self.label_of(label), *zip(*line, strict=True), **settings) for line in lines]


def log_with_past(run: RunFiles, others: list[RunFiles]) -> EventLog:
    """A run's events; of a fork whose parent is among the others, with the steps that it shares with it."""
    if not isinstance(run.lineage, dict):
        return run.log
    last = int(run.lineage["step"])
    # Its lineage has a path from a folder that is not known any more: the parent may be beside the fork, or above.
    fork, given = run.folder.resolve(), Path(str(run.lineage["run"]))
    places = {fork.parent / given.name, *(above / given for above in fork.parents)}
    parent = next((each for each in others if each is not run and each.folder.resolve() in places), None)
    if parent is None:
        return run.log
    return run.log.after(log_with_past(parent, [each for each in others if each is not run]), last)


def shown_runs(files: list[RunFiles]) -> list[ShownRun]:
    """Runs with labels that differ: by name, or by folder where names are the same."""
    for number, each in enumerate(files):
        if each.folder.resolve() in [other.folder.resolve() for other in files[:number]]:
            raise UsageError(f"{each.folder}: is given twice. Give it once.")
    names = [each.name for each in files]
    labels = names if len(set(names)) == len(names) else [str(each.folder) for each in files]
    return [
        ShownRun(
            label=label,
            plan=each.plan,
            number=number,
            config=each.config,
            config_text=each.config_text,
            lineage=each.lineage,
            checkpoints=each.checkpoints,
            rows=each.rows,
            folder=str(each.folder),
            log=log_with_past(each, files),
            several=len(files) > 1,
        )
        for number, (each, label) in enumerate(zip(files, labels, strict=True))
    ]

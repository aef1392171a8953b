"""The history of a run: launches, stages, saves; its config and its lineage."""

from trivium.report.charts import Block, PageTable, Section, Text, by_key, long_table, moment, show_value
from trivium.report.run import ShownRun
from trivium.run.events import (
    Ended,
    EndedEarly,
    Event,
    Failed,
    Notice,
    Preempted,
    Saved,
    SaveFailed,
    StageBegan,
    Started,
)

LISTED = (
    StageBegan,
    EndedEarly,
    Saved,
    SaveFailed,
    Notice,
    Preempted,
    Failed,
    Ended,
)  # in the table of events, one by one


def history_section(runs: list[ShownRun]) -> Section:
    """Launches, checkpoints and other events, in the order in which they came."""
    blocks: list[Block] = [make(run) for run in runs for make in (_launches, _checkpoints, _happened)]
    return Section("history", "History", blocks)


def _checkpoints(run: ShownRun) -> PageTable:
    rows = [
        [f"{state['step']:,}", str(state["stage_name"]), str(state["world_size"]), str(state["validation"] or "")]
        for state in run.checkpoints
    ]
    columns = ["step", "stage", "ranks", "last evaluation before it"]
    title = run.label_of("Checkpoints on disk")
    return PageTable(f"checkpoints-{run.number}", title, columns, rows, numbers=(0, 2), folded=run.several)


def _launches(run: ShownRun) -> PageTable:
    rows = [
        [
            f"{event.step:,}",
            "resumes" if event.resumed else "starts",
            moment(time),
            f"{event.world_size:,}",
            "; ".join(f"{key}: {show_value(value)}" for key, value in event.changes.items()),
            show_value({key: value for key, value in event.settings.items() if value is not None}),
        ]
        for event, time in run.log.logged(Started)
        if isinstance(event, Started)
    ]
    columns = ["step", "run", "time (UTC)", "ranks", "changed keys", "settings"]
    return PageTable(f"launches-{run.number}", run.label_of("Launches"), columns, rows, numbers=(0, 3))


def _happened(run: ShownRun) -> PageTable:
    rows = [
        [f"{event.step:,}", moment(time), event.kind, _details(event)]
        for event, time in sorted(run.log.logged(*LISTED), key=lambda logged: logged.time)
    ]
    columns = ["step", "time (UTC)", "event", ""]
    return long_table(f"happened-{run.number}", run.label_of("Events"), columns, rows, numbers=(0,), folded=True)


def _details(event: Event) -> str:
    match event:
        case StageBegan():
            changes = (f"{key} {show_value(old)} to {show_value(new)}" for key, (old, new) in event.changes.items())
            return f"{event.name}" + "".join(f"; {change}" for change in changes)
        case EndedEarly():
            return f"{event.stage} ends, with {event.until} ({event.figure:.4g})"
        case Saved():
            return f"{event.reason}, {event.bytes / 1e6:,.1f} MB in {event.seconds:.2f} s"
        case SaveFailed():
            return f"{event.reason}: {event.why}"
        case Preempted():
            return event.signal
        case Notice():
            return event.text
        case Failed():
            return event.why
        case Ended():
            return "finished" if event.finished else "stopped"
        case _:
            return ""


def config_section(runs: list[ShownRun]) -> Section:
    """The config as given, and where the run comes from."""
    blocks: list[Block] = []
    for run in runs:
        blocks += [
            PageTable(f"lineage-{run.number}", run.label_of("Lineage"), ["", ""], _lineage(run)),
            Text(f"config-{run.number}", run.label_of("config.toml"), run.config_text, folded=True),
        ]
    return Section("config", "Config", blocks)


def _lineage(run: ShownRun) -> list[list[str]]:
    """The run and step that this one was forked from, by its lineage.json or its first launch."""
    lineage = run.lineage or (run.beginning.lineage if run.beginning else None)
    return by_key(lineage) if isinstance(lineage, dict) else []

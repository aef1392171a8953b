"""What the model wrote, and what happened: launches, stages, saves, config, versions, lineage."""

import re
from typing import Any

from trivium.report.charts import Block, Section, Table, Text, by_key, show_value
from trivium.report.common import long_table, moment
from trivium.report.run import Shown

Record = dict[str, Any]
BLANK_LINES = re.compile(r"\n(?:[ \t]*\n){2,}")
TOLD = ("stage", "saved", "save_failed", "said", "preempted", "ended")  # kinds that are listed one by one


def texts_section(runs: list[Shown]) -> Section:
    """What the model wrote, at stage boundaries."""
    blocks: list[Block] = [
        Text(
            f"text-{run.number}-{number}",
            run.label_of(f"Step {event['step']:,}"),
            readable(f"{event.get('prompt', '')}{event.get('text', '')}"),
            note=f"Prompt: {event.get('prompt', '')!r}",
        )
        for run in runs
        for number, event in enumerate(run.log.of("sampled"))
    ]
    lead = "What the model wrote when it was asked to. Several blank lines are shown as one."
    return Section("texts", "Texts", blocks, lead)


def readable(text: str) -> str:
    """A text without the many blank lines that an untrained model writes."""
    return BLANK_LINES.sub("\n\n", text).rstrip() or "(nothing but blank space)"


def history_section(runs: list[Shown]) -> Section:
    """Launches, stages, saves and words, in the order in which they came."""
    return Section("history", "History", [table for run in runs for table in _history(run)])


def _history(run: Shown) -> list[Table]:
    return [_launches(run), _checkpoints(run), _happened(run)]


def _checkpoints(run: Shown) -> Table:
    rows = [
        [f"{state['step']:,}", str(state["stage_name"]), str(state["world_size"]), str(state["validation"] or "")]
        for state in run.checkpoints
    ]
    columns = ["step", "stage", "ranks", "last evaluation before it"]
    title = run.label_of("Checkpoints on disk")
    return Table(f"checkpoints-{run.number}", title, columns, rows, numbers=(0, 2), folded=run.several)


def _launches(run: Shown) -> Table:
    rows = [
        [
            f"{event['step']:,}",
            "goes on" if event.get("resumed") else "starts",
            moment(event.get("time")),
            f"{event.get('world_size', 1):,}",
            "; ".join(f"{key}: {show_value(value)}" for key, value in (event.get("changes") or {}).items()),
            show_value({key: value for key, value in (event.get("settings") or {}).items() if value is not None}),
        ]
        for event in run.log.of("started")
    ]
    columns = ["step", "run", "time (UTC)", "ranks", "changed keys", "settings"]
    return Table(f"launches-{run.number}", run.label_of("Launches"), columns, rows, numbers=(0, 3))


def _happened(run: Shown) -> Table:
    rows: list[tuple[float, list[str]]] = []
    for event in (event for kind in TOLD for event in run.log.of(kind)):
        words = _words(event)
        rows.append((event.get("time", 0.0), [f"{event['step']:,}", moment(event.get("time")), event["event"], words]))
    in_order = [cells for _, cells in sorted(rows, key=lambda row: row[0])]
    columns = ["step", "time (UTC)", "what", ""]
    return long_table(f"happened-{run.number}", run.label_of("Events"), columns, in_order, numbers=(0,), folded=True)


def _words(event: Record) -> str:
    match event["event"]:
        case "stage":
            changes = (f"{key} {show_value(old)} to {show_value(new)}" for key, (old, new) in event["changes"].items())
            return f"{event['name']}" + "".join(f"; {change}" for change in changes)
        case "saved":
            return f"{event['reason']}, {event['bytes'] / 1e6:,.1f} MB in {event['seconds']:.2f} s"
        case "save_failed":
            return f"{event['reason']}: {event['why']}"
        case "preempted":
            return str(event["signal"])
        case "said":
            return str(event["text"])
        case _:
            return "finished" if event["finished"] else "stopped"


def config_section(runs: list[Shown]) -> Section:
    """The config as given, versions, and where the run comes from."""
    blocks: list[Block] = []
    for run in runs:
        started = run.log.of("started")
        versions = by_key(started[-1].get("versions")) if started else []
        blocks += [
            Table(f"lineage-{run.number}", run.label_of("Lineage"), ["", ""], _lineage(run)),
            Table(f"versions-{run.number}", run.label_of("Versions"), ["", ""], versions, folded=run.several),
            Text(f"config-{run.number}", run.label_of("config.toml"), run.config_text, folded=True),
        ]
    return Section("config", "Config", blocks)


def _lineage(run: Shown) -> list[list[str]]:
    """The run and step that this one was forked from, as its folder says, or its first launch."""
    started = run.log.of("started")
    lineage = run.lineage or (started[0].get("lineage") if started else None)
    return by_key(lineage) if isinstance(lineage, dict) else []

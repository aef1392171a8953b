"""Speed: throughput, waiting, pauses, memory, where the time went."""

import numpy as np

from trivium.report.charts import Block, Chart, Section, Series, Table
from trivium.report.common import duration, event_series, percent
from trivium.report.run import Shown


def speed_section(runs: list[Shown]) -> Section:
    """Throughput, waiting for data, pauses, memory, and where the time went."""

    def chart(name: str, title: str, column: str, note: str = "", unit: str = "", factor: float = 1.0) -> Chart:
        series = []
        for run in runs:
            steps, values = run.log.steps.known(column)
            series.append(Series(run.label_of(title.lower()), steps, values * factor, run=run.number))
        return Chart(name, title, series, note, unit, scale="zero")

    pauses = [
        series
        for run in runs
        for kind, what in (("saved", "checkpoint"), ("evaluated", "evaluation"))
        for series in event_series(run.label_of(what), run.log.of(kind), lambda event: event["seconds"], run)
    ]
    blocks: list[Block] = [
        chart("throughput", "Tokens a second", "tokens_per_second"),
        chart("mfu", "Use of the device's peak", "mfu", unit="%", factor=100),
        chart("seconds", "Seconds a step", "seconds", unit="s"),
        chart("waited", "Waited for data", "waited", "Seconds of each step.", "s"),
        Chart("pauses", "Checkpoints and evaluations", pauses, "Seconds each took.", "s", scale="zero"),
        chart("memory", "Memory", "memory", unit="bytes"),
        Table(
            "time",
            "Where the time went",
            ["run", "steps", "of it for data", "evaluations", "checkpoints", "launches", "first to last event"],
            [_time_row(run) for run in runs if len(run.log.steps)],
            "Checkpoints written in the background count in full. Steps that a resume took again count once.",
            numbers=(1, 2, 3, 4, 5, 6),
        ),
    ]
    return Section("speed", "Speed", blocks)


def _time_row(run: Shown) -> list[str]:
    columns, log = run.log.steps, run.log
    stepping = float(np.nansum(columns.column("seconds")))
    waited = float(np.nansum(columns.column("waited")))
    outside = [sum(event["seconds"] for event in log.of(kind)) for kind in ("evaluated", "saved")]
    wall = (log.last_time or 0.0) - (log.first_time or 0.0)
    data = f"{duration(waited)} ({percent(waited, stepping)})"
    launches = f"{len(log.of('started')):,}"
    return [run.label, duration(stepping), data, *map(duration, outside), launches, duration(wall)]

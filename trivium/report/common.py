"""Series and tables that several parts of a page are made of."""

import time
from collections.abc import Callable
from typing import Any

from trivium.report.charts import Series, Style, Table
from trivium.report.run import Shown

Record = dict[str, Any]
MOST_ROWS = 300  # of a table


def source_series(run: Shown, table: str, style: Style = "line") -> list[Series]:
    """A figure that each step has by source, as one series a source."""
    names = [name for name in run.sources if name in run.log.steps.under(table)]
    return [
        Series(run.label_of(name), *run.log.steps.known(f"{table}/{name}"), style=style, source=name, run=run.number)
        for name in names
    ]


def event_series(
    label: str, events: list[Record], pick: Callable[[Record], Any], run: Shown, source: str | None = None
) -> list[Series]:
    """A figure of some events at their steps, where they have it; another line begins where a step has a second one."""
    lines: list[list[tuple[int, float]]] = []
    for event in events:
        value, last = pick(event), lines[-1][-1][0] if lines else None
        if value is not None:
            if not lines or event["step"] == last:
                lines.append([])
            lines[-1].append((event["step"], value))
    return [Series.of(label, *zip(*line, strict=True), style="marked", source=source, run=run.number) for line in lines]


def long_table(name: str, title: str, columns: list[str], rows: list[list[str]], **settings: Any) -> Table:
    """A table that shows its last rows where it has too many for a page."""
    note = f"The last {MOST_ROWS:,} of {len(rows):,}." if len(rows) > MOST_ROWS else ""
    return Table(name, title, columns, rows[-MOST_ROWS:], note, **settings)


def moment(seconds: float | None) -> str:
    """A time in UTC."""
    return "" if seconds is None else time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(seconds))


def duration(seconds: float) -> str:
    """`1 h 02 min`, `3 min 05 s`, `4.2 s`."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    if seconds < 3600:
        return f"{int(seconds // 60)} min {int(seconds % 60):02d} s"
    if seconds < 86400:
        return f"{int(seconds // 3600)} h {int(seconds % 3600 // 60):02d} min"
    return f"{int(seconds // 86400)} d {int(seconds % 86400 // 3600):02d} h"


def percent(part: float, whole: float) -> str:
    """`3.2%`; of nothing, 0%."""
    return f"{100 * part / whole:.3g}%" if part and whole else "0%"

"""Charts and tables as plain values that the page draws; series of steps and numbers are thinned and packed.

A number takes 4 bytes in base64: 7 digits, far more than a screen shows.
"""

import base64
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from trivium.report.columns import Floats, Int64s, thinned

MOST_ROWS = 300  # of a table
Style = Literal["line", "faint", "dashed", "stepped", "points", "marked"]


@dataclass(frozen=True, slots=True)
class Series:
    """One line of a chart: numbers by step, of a run, and of a source where it has one.

    Lines of one label are one thing to a reader, with gaps between them.
    """

    label: str
    steps: Int64s
    values: Floats
    style: Style = "line"
    source: str | None = None
    run: int = 0

    @classmethod
    def of(cls, label: str, steps: ArrayLike, values: ArrayLike, **settings: Any) -> "Series":
        """From any two sequences of the same length."""
        return cls(label, np.asarray(steps, np.int64), np.asarray(values, np.float64), **settings)

    def packed(self, points: int) -> dict[str, Any]:
        """For the page; with about `points` points at most."""
        kept = thinned(self.values, points)
        return {
            "label": self.label,
            "style": self.style,
            "source": self.source,
            "run": self.run,
            "all": len(self.values),
            "steps": packed_numbers(self.steps[kept].astype("<u4")),
            "values": packed_numbers(self.values[kept].astype("<f4")),
        }


@dataclass(frozen=True, slots=True)
class Chart:
    """Some series over one step axis."""

    id: str
    title: str
    series: list[Series]
    note: str = ""
    unit: str = ""  # of the numbers: "", "%", "s", "bytes"
    scale: Literal["linear", "log", "zero"] = "linear"  # "zero" starts the axis at 0
    stacked: bool = False
    small: bool = False
    wide: bool = False
    smooth: bool = False  # whether a reader may smooth it: figures of every step

    def packed(self, points: int) -> dict[str, Any]:
        """For the page; series without points are skipped."""
        return {
            "type": "chart",
            **{each.name: getattr(self, each.name) for each in fields(self)},
            "series": [series.packed(points) for series in self.series if len(series.values)],
        }


@dataclass(frozen=True, slots=True)
class PageTable:
    """Text in rows; numbers to the right, a source with its colour."""

    id: str
    title: str
    columns: list[str]
    rows: list[list[str]]
    note: str = ""
    numbers: tuple[int, ...] = ()  # columns of numbers
    sources: tuple[int, ...] = ()  # columns of names of sources
    folded: bool = False  # shown when its title is clicked

    def packed(self, _points: int) -> dict[str, Any]:
        return {"type": "table", **asdict(self)}


@dataclass(frozen=True, slots=True)
class Panel:
    """Charts one below the other over one step axis."""

    id: str
    title: str
    charts: list[Chart]
    note: str = ""

    def packed(self, points: int) -> dict[str, Any]:
        charts = [packed for chart in self.charts if (packed := chart.packed(points))["series"]]
        return {"type": "panel", "id": self.id, "title": self.title, "note": self.note, "charts": charts}


@dataclass(frozen=True, slots=True)
class Text:
    """Plain text: a config, a sampled text, warnings."""

    id: str
    title: str
    text: str
    note: str = ""
    folded: bool = False
    plain: bool = False  # sentences rather than code

    def packed(self, _points: int) -> dict[str, Any]:
        return {"type": "text", **asdict(self)}


@dataclass(frozen=True, slots=True)
class Texts:
    """Texts one beside or below the other, each with a label."""

    id: str
    title: str
    entries: list[tuple[str, str]]
    note: str = ""

    def packed(self, _points: int) -> dict[str, Any]:
        return {"type": "texts", **asdict(self)}


Block = Chart | PageTable | Panel | Text | Texts


@dataclass(frozen=True, slots=True)
class Section:
    """A heading of the page and the blocks below it."""

    id: str
    title: str
    blocks: list[Block] = field(default_factory=list)
    lead: str = ""

    def packed(self, points: int) -> dict[str, Any]:
        """For the page; charts and tables without content are skipped."""
        blocks = [block.packed(points) for block in self.blocks if not _is_empty(block)]
        return {"id": self.id, "title": self.title, "lead": self.lead, "blocks": blocks}


def _is_empty(block: Block) -> bool:
    match block:
        case Chart():
            return not any(len(series.values) for series in block.series)
        case Panel():
            return all(_is_empty(chart) for chart in block.charts)
        case PageTable():
            return not block.rows
        case Text():
            return not block.text
        case Texts():
            return not block.entries


def count_series(sections: Iterable[Section]) -> int:
    charts: list[Chart] = []
    for block in (block for section in sections for block in section.blocks):
        charts += [block] if isinstance(block, Chart) else block.charts if isinstance(block, Panel) else []
    return sum(len(chart.series) for chart in charts)


def packed_numbers(numbers: np.ndarray[Any, Any]) -> str:
    """As the page unpacks them."""
    return base64.b64encode(np.ascontiguousarray(numbers).tobytes()).decode()


def by_key(pairs: Mapping[str, Any] | None) -> list[list[str]]:
    return [[str(key), show_value(value)] for key, value in (pairs or {}).items()]


def show_value(value: Any) -> str:
    """Anything from an event in few words: 0.25, `web 3`, none."""
    match value:
        case None:
            return "none"
        case bool():
            return "true" if value else "false"
        case int():
            return f"{value:,}"
        case float():
            return f"{value:.6g}"
        case dict():
            return ", ".join(f"{key} {show_value(each)}" for key, each in value.items())
        case list() | tuple():
            between = "; " if any(isinstance(each, dict) for each in value) else ", "
            return between.join(show_value(each) for each in value)
        case _:
            return str(value)


def long_table(name: str, title: str, columns: list[str], rows: list[list[str]], **settings: Any) -> PageTable:
    """A table that shows its last rows where it has too many for a page."""
    note = f"The last {MOST_ROWS:,} of {len(rows):,}." if len(rows) > MOST_ROWS else ""
    return PageTable(name, title, columns, rows[-MOST_ROWS:], note, **settings)


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

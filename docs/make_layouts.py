"""Writes the tables of layouts into the pages: the memory of a rank, as `trivium plan --on` measures it.

python docs/make_layouts.py                      # takes some minutes
python docs/make_layouts.py long-context.md      # of one page alone
"""

import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from trivium.config.load import validate
from trivium.forecast.forecast import make_forecast
from trivium.forecast.machine import make_machine
from trivium.plan.make import make_plan

PAGES = Path(__file__).parent
TABLE = re.compile(r"(?<=<!-- layouts -->\n\n).*?(?=\n\n<!-- end -->)", re.DOTALL)
DEVICE = "H100"
FULL = {"recompute": "full"}
Engine = Mapping[str, Any]

SIZES, RANKS, ROW = ("1b", "8b", "70b"), (8, 64, 256, 1024), 8192
ENGINES: dict[str, Engine] = {
    "shard": {},
    "shard, recomputed": FULL,
    "tensor 8, recomputed": {**FULL, "parallel": {"tensor": 8}},
}

LONG_SIZE, LONG_ROWS, LONG_RANKS = "8b", {"32k": 2**15, "128k": 2**17, "1M": 2**20}, (8, 64, 256)
CONTEXTS = (1, 8, 32)


def cell(size: str, ranks: int, engine: Engine, seq_len: int = ROW) -> str:
    """`14.5 GB`, or `**151.0 GB**` where a device has less; nothing where there are too few ranks."""
    parallel = engine.get("parallel", {})
    readers = ranks // (parallel.get("context", 1) * parallel.get("tensor", 1))
    if readers == 0:
        return ""
    stage = {"name": "main", "steps": 1, "seq_len": seq_len, "batch_size": 2 * readers, "mixture": {"web": 1.0}}
    raw = {
        "run": {"name": "layout"},
        "model": {"size": size, "vocab": 128_256},
        "sources": {"web": {"kind": "tokens", "path": "nowhere"}},
        "optimizer": {"grad_clip": 1.0},
        "engine": {"micro_batch_size": 1, **engine},
        "stages": [stage],
    }
    machine = make_machine(f"{ranks}x{DEVICE}", None, None, None)
    assert machine is not None
    (found,) = make_forecast(make_plan(validate(raw, "layout.toml")[0]), machine, advise=False).stages
    shown = f"{found.memory / 1e9:.1f} GB"
    return shown if found.memory <= machine.device.memory else f"**{shown}**"


def layouts() -> str:
    """A line for each size and number of ranks."""
    lines = [f"| model | ranks | {' | '.join(ENGINES)} |", "|---|---|" + "---|" * len(ENGINES)]
    for size in SIZES:
        for ranks in RANKS:
            cells = [cell(size, ranks, engine) for engine in ENGINES.values()]
            lines.append(f"| {size} | {ranks:,} | {' | '.join(cells)} |")
    return "\n".join(lines)


def long_rows() -> str:
    """A line for each row length and number of ranks; a column for each number of ranks that share a row."""
    engines: dict[str, Engine] = {f"context {size}": {**FULL, "parallel": {"context": size}} for size in CONTEXTS}
    lines = [f"| row | ranks | {' | '.join(engines)} |", "|---|---|" + "---|" * len(engines)]
    for name, seq_len in LONG_ROWS.items():
        for ranks in LONG_RANKS:
            cells = [cell(LONG_SIZE, ranks, engine, seq_len) for engine in engines.values()]
            lines.append(f"| {name} | {ranks:,} | {' | '.join(cells)} |")
    return "\n".join(lines)


TABLES: dict[str, Callable[[], str]] = {"many-machines.md": layouts, "long-context.md": long_rows}


def write_table(name: str) -> None:
    """Measure a page's table again, and put it into the page."""
    text = (PAGES / name).read_text(encoding="utf-8")
    assert TABLE.search(text) is not None, "the page has a place for the table"
    made = TABLES[name]()
    (PAGES / name).write_text(TABLE.sub(lambda _: made, text), encoding="utf-8")


if __name__ == "__main__":
    for page in sys.argv[1:] or TABLES:
        write_table(page)

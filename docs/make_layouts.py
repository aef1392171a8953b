"""Writes the table of layouts into docs/many-machines.md: the memory of a rank, as `trivium plan --on` measures it.

python docs/make_layouts.py        # takes a few minutes
"""

import re
from pathlib import Path
from typing import Any

from trivium.config.load import validate
from trivium.forecast.forecast import make_forecast
from trivium.forecast.machine import make_machine
from trivium.plan.make import make_plan

PAGE = Path(__file__).with_name("many-machines.md")
TABLE = re.compile(r"(?<=<!-- layouts -->\n\n).*?(?=\n\n<!-- end -->)", re.DOTALL)
SIZES, RANKS, DEVICE = ("1b", "8b", "70b"), (8, 64, 256, 1024), "H100"
ENGINES: dict[str, dict[str, Any]] = {
    "shard": {},
    "shard, recomputed": {"recompute": "full"},
    "tensor 8, recomputed": {"recompute": "full", "parallel": {"tensor": 8}},
}


def cell(size: str, ranks: int, engine: dict[str, Any]) -> str:
    """`14.5 GB`, or `**151.0 GB**` where a device has less."""
    raw = {
        "run": {"name": "layout"},
        "model": {"size": size, "vocab": 128_256},
        "sources": {"web": {"kind": "tokens", "path": "nowhere"}},
        "optimizer": {"grad_clip": 1.0},
        "engine": {"micro_batch_size": 1, **engine},
        "stages": [{"name": "main", "steps": 1, "seq_len": 8192, "batch_size": 2 * ranks, "mixture": {"web": 1.0}}],
    }
    machine = make_machine(f"{ranks}x{DEVICE}", None, None, None)
    assert machine is not None
    (stage,) = make_forecast(make_plan(validate(raw, "layout.toml")[0]), machine, advise=False).stages
    shown = f"{stage.memory / 1e9:.1f} GB"
    return shown if stage.memory <= machine.device.memory else f"**{shown}**"


def table() -> str:
    """A line for each size and number of ranks."""
    lines = [f"| model | ranks | {' | '.join(ENGINES)} |", "|---|---|" + "---|" * len(ENGINES)]
    for size in SIZES:
        for ranks in RANKS:
            cells = [cell(size, ranks, engine) for engine in ENGINES.values()]
            lines.append(f"| {size} | {ranks:,} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    page = PAGE.read_text(encoding="utf-8")
    assert TABLE.search(page) is not None, "the page has a place for the table"
    made = table()
    PAGE.write_text(TABLE.sub(lambda _: made, page), encoding="utf-8")

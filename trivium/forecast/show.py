"""A forecast for people and for machines: tables of 80 columns, and JSON."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import groupby
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.text import Text

from trivium.config.numbers import show_count
from trivium.engine.memory import KINDS, Parts
from trivium.engine.mesh import MeshShape
from trivium.forecast.forecast import Forecast
from trivium.plan.plan import Plan
from trivium.plan.show import UNKNOWN, plain_table

GB = 1e9
WIDE = 5  # stages beside one another in a terminal


def forecast_json(forecast: Forecast) -> dict[str, Any]:
    """Bytes, seconds and dollars; null where a length or a price is not known."""
    return {
        "devices": forecast.machine.count,
        "device": {key: value for key, value in asdict(forecast.machine.device).items() if key != "reported"},
        "layout": asdict(forecast.layout.mesh),
        "mfu": forecast.mfu,
        "fits": forecast.fits,
        "tightest": forecast.tightest.name,
        "seconds": forecast.seconds,
        "device_hours": forecast.device_hours(forecast.seconds),
        "cost": forecast.cost(forecast.seconds),
        "stages": [
            {
                "name": stage.name,
                "layout": asdict(stage.mesh),
                "memory": {**stage.parts, "margin": stage.margin, "total": stage.memory},
                "fits": stage.memory <= forecast.machine.device.memory,
                "flops_per_token": stage.flops_per_token,
                "tokens_per_second": stage.tokens_per_second,
                "seconds": stage.seconds,
                "device_hours": forecast.device_hours(stage.seconds),
                "cost": forecast.cost(stage.seconds),
            }
            for stage in forecast.stages
        ],
        "advice": [asdict(advice) for advice in forecast.advice],
    }


def show_forecast(forecast: Forecast, console: Console) -> None:
    """Print what every stage takes, and what would make it fit."""
    plain = forecast_json(forecast)
    parts: list[RenderableType] = [Text(), Text(headline(plain), style="bold")]
    stages = plain["stages"]
    some = [{**plain, "stages": stages[first : first + WIDE]} for first in range(0, len(stages), WIDE)]
    for headers, rows in (*map(memory_rows, some), time_rows(plain)):
        table = plain_table(*headers, right=tuple(range(1, len(headers))))
        for row in rows:
            table.add_row(*map(Text, row))
        parts += [table, Text()]
    parts += [Text(line) for line in advice_lines(plain)]
    console.print(Group(*parts), highlight=False)


def headline(forecast: dict[str, Any]) -> str:
    """`on 64 x H100 (84.8 GB, 990 TFLOP/s, $2.50 an hour each), at 40% of the peak`."""
    device = forecast["device"]
    price = "" if device["price"] is None else f", ${device['price']:.2f} an hour each"
    figures = f"{device['memory'] / GB:.1f} GB, {device['flops'] / 1e12:,.0f} TFLOP/s{price}"
    return f"on {forecast['devices']:,} x {device['name']} ({figures}), at {forecast['mfu']:.0%} of the peak"


def memory_rows(forecast: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """A rank's memory in GB, a line for each part and a column for each stage; parts that none has are left out."""
    stages = forecast["stages"]
    kinds = [kind for kind in KINDS if any(stage["memory"][kind] >= GB / 20 for stage in stages)]
    rows = [[kind, *(_gb(stage["memory"][kind]) for stage in stages)] for kind in (*kinds, "margin", "total")]
    layouts = [stage.get("layout", forecast["layout"]) for stage in stages]
    if any(layout != forecast["layout"] for layout in layouts):
        rows.insert(0, ["ranks that share a row", *(str(layout["context"]) for layout in layouts)])
    rows.append(["fits", *("yes" if stage["fits"] else "no" for stage in stages)])
    return ["GB of a rank", *(stage["name"] for stage in stages)], rows


def time_rows(forecast: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Speed, hours and cost of every stage, and of the run where it has several."""
    rows = [
        [
            stage["name"],
            show_count(stage["flops_per_token"]),
            show_count(round(stage["tokens_per_second"])),
            *_spent(stage),
        ]
        for stage in forecast["stages"]
    ]
    if len(rows) > 1:
        rows.append(["all", "", "", *_spent(forecast)])
    return ["stage", "FLOPs/token", "tokens/s", "hours", "device hours", "cost"], rows


def advice_lines(forecast: dict[str, Any]) -> list[str]:
    """What would make each stage fit that does not, step by step."""
    memory, lines = forecast["device"]["memory"], []
    for stage, found in groupby(forecast["advice"], key=lambda each: each["stage"]):
        advice = list(found)
        lines.append(f"{stage} does not fit. Each change with those before it, but one layout:")
        lines += [
            f"  {each['change']}: {_gb(each['memory'])} GB, {'fits' if each['fits'] else 'does not fit'}"
            for each in advice
        ]
        if not any(each["fits"] for each in advice):
            lines.append(f"  None makes it fit in {_gb(memory)} GB: take more devices, larger ones, or shorter rows.")
    return lines


def show_check(plan: Plan, mesh: MeshShape, found: Mapping[int, Sequence[Parts]], console: Console) -> None:
    """Print what ranks of a layout hold in each stage."""
    ranks = ", ".join(f"{rank:,}" for rank in found)
    table = plain_table("stage", *(f"rank {rank:,}" for rank in found), right=tuple(range(1, len(found) + 1)))
    for number, stage in enumerate(plan.stages):
        context = stage.config.engine.context
        name = stage.name if context in (None, mesh.context) else f"{stage.name} (context {context})"
        table.add_row(name, *(f"{_gb(sum(peaks[number].values()))} GB" for peaks in found.values()))
    headline = f"{mesh.size:,} ranks ({mesh}): rank{'s' if len(found) > 1 else ''} {ranks} took a step of every stage"
    console.print(Group(Text(headline, style="bold"), table), highlight=False)


def _spent(of: dict[str, Any]) -> list[str]:
    seconds, hours, cost = of["seconds"], of["device_hours"], of["cost"]
    return [
        UNKNOWN if seconds is None else _hours(seconds / 3600),
        UNKNOWN if hours is None else _hours(hours),
        UNKNOWN if cost is None else f"${cost:,.2f}" if cost < 100 else f"${cost:,.0f}",
    ]


def _hours(hours: float) -> str:
    return f"{hours:.3g}" if hours < 100 else f"{hours:,.0f}"


def _gb(size: int) -> str:
    return f"{size / GB:,.1f}"

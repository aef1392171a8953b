"""Stability: gradient norms, spikes, steps that were skipped, losses that are no number."""

from typing import Any

import numpy as np

from trivium.report.charts import Block, Chart, Section, Series, Table, show_value
from trivium.report.common import long_table
from trivium.report.run import Shown


def stability_section(runs: list[Shown]) -> Section:
    """Gradient norms, spikes, steps that were skipped and losses that were no number."""
    norms = [Series(run.label_of("gradient norm"), *_positive(run, "gradient_norm"), run=run.number) for run in runs]
    rates = [Series(run.label_of("taken"), *run.log.steps.known("lr/matrix"), run=run.number) for run in runs]
    blocks: list[Block] = [
        Chart("gradient-norm", "Gradient norm", norms, "Before clipping.", scale="log"),
        Chart("lr", "Learning rate as taken", rates, "Of the layers' matrices.", scale="zero"),
        *_extra_charts(runs),
        *(_trouble_table(run) for run in runs),
    ]
    return Section("stability", "Stability", blocks)


def _positive(run: Shown, name: str) -> tuple[Any, Any]:
    steps, values = run.log.steps.known(name)
    drawn = np.isfinite(values) & (values > 0)  # a logarithm knows no others
    return steps[drawn], values[drawn]


def _extra_charts(runs: list[Shown]) -> list[Block]:
    names = dict.fromkeys(name for run in runs for name in run.log.steps.under("extra"))
    return [
        Chart(
            f"extra-{number}",
            name,
            [Series(run.label_of(name), *run.log.steps.known(f"extra/{name}"), run=run.number) for run in runs],
        )
        for number, name in enumerate(names)
    ]


def _trouble_table(run: Shown) -> Table:
    rows = [
        [event["step"], kind, show_value(event.get("loss")), show_value(event.get("rows", ""))]
        for kind in ("spike", "skipped")
        for event in run.log.of(kind)
    ]
    steps, loss = run.log.steps.steps, run.log.steps.column("loss")
    bad = ~np.isfinite(loss)
    rows += [[int(step), "no finite loss", str(value), ""] for step, value in zip(steps[bad], loss[bad], strict=True)]
    shown = [[f"{step:,}", *cells] for step, *cells in sorted(rows, key=lambda row: row[0])]
    title = run.label_of("Spikes and steps skipped")
    return long_table(f"troubles-{run.number}", title, ["step", "what", "loss", "rows"], shown, numbers=(0, 2))

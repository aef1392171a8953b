"""Stability: gradient norms, spikes, steps that were left out, losses that are no number."""

from typing import Any

import numpy as np

from trivium.report.charts import Block, Chart, Section, Series, Table
from trivium.report.common import long_table
from trivium.report.run import Shown

MOST_DOCUMENTS = 12  # of a source, named for one step
EXTRAS = {  # what engines add: a title and a note
    "kl": ("KL to the reference", "Nats a learnt token, before it is multiplied by beta."),
    "reference_loss": ("Loss of the reference", "Of the frozen model, on the same tokens."),
    "objective": ("Objective", "What is minimised: the loss, and beta times the KL."),
}


def stability_section(runs: list[Shown]) -> Section:
    """Gradient norms, spikes, steps that were left out and losses that were no number."""
    norms = [Series(run.label_of("gradient norm"), *_positive(run, "grad_norm"), run=run.number) for run in runs]
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
            EXTRAS.get(name, (name.replace("_", " "), ""))[0],
            [Series(run.label_of(name), *run.log.steps.known(f"extra/{name}"), run=run.number) for run in runs],
            EXTRAS.get(name, ("", ""))[1],
        )
        for number, name in enumerate(names)
    ]


def _trouble_table(run: Shown) -> Table:
    rows = [
        [event["step"], "spike", f"{event['loss']:.4f}", f"over {event['limit']:.4f}", _rows(run, event)]
        for event in run.log.of("spiked")
    ]
    rows += [[event["step"], "left out", "", event["why"], _rows(run, event)] for event in run.log.of("skipped")]
    steps, loss = run.log.steps.steps, run.log.steps.column("loss")
    bad = ~np.isfinite(loss)
    rows += [
        [int(step), "taken", str(value), "no number", ""] for step, value in zip(steps[bad], loss[bad], strict=True)
    ]
    shown = [[f"{step:,}", *cells] for step, *cells in sorted(rows, key=lambda row: row[0])]
    title = run.label_of("Spikes and steps left out")
    return long_table(f"troubles-{run.number}", title, ["step", "what", "loss", "why", "rows"], shown, numbers=(0, 2))


def _rows(run: Shown, event: dict[str, Any]) -> str:
    """`web: 812, 97; code: 7`: the documents of a step's rows by source, the first of many."""
    documents: dict[str, dict[str, None]] = {}
    for row in run.rows.get(str(event.get("rows")), []):
        found = documents.setdefault(row["source"], {})
        found.update((f"{piece['document']:,}", None) for piece in row["pieces"])
    parts = []
    for source, numbers in documents.items():
        more = f" and {len(numbers) - MOST_DOCUMENTS:,} more" if len(numbers) > MOST_DOCUMENTS else ""
        parts.append(f"{source}: {', '.join([*numbers][:MOST_DOCUMENTS])}{more}")
    return "; ".join(parts)

"""How the steps went. Speed: throughput, waiting, pauses, memory. Stability: gradient norms, spikes, skipped steps."""

from typing import Any

import numpy as np

from trivium.report.charts import Block, Chart, PageTable, Section, Series, duration, long_table, percent
from trivium.report.run import ShownRun
from trivium.run.events import Evaluated, Saved, Skipped, Spiked, Started

MOST_DOCUMENTS = 12  # of a source, named for one step
EXTRA_TABLES = ("extra", "figures")  # what an engine and the user's own code add to a step
EXTRAS = {  # what engines add: a title and a note
    "kl": ("KL to the reference", "Nats a token that counts in the loss, before it is multiplied by beta."),
    "reference_loss": ("Loss of the reference", "Of the frozen model, on the same tokens."),
    "distill": (
        "KL to the teacher",
        "Nats a token that counts in the loss, times the square of the temperature, before it is multiplied by beta.",
    ),
    "teacher_loss": ("Loss of the teacher", "Of the frozen model, on the same tokens."),
    "balance_loss": ("Balancing loss of experts", "As it is part of the objective: times its coefficient."),
    "weighted_loss": ("Weighted loss", "The loss by the weights that the stage gives to its sources."),
    "objective": (
        "Objective",
        "What is minimised: the loss, weighted where the stage has weights, and its other terms.",
    ),
}


def speed_section(runs: list[ShownRun]) -> Section:
    """Throughput, waiting for data, pauses, memory, and where the time went."""

    def chart(name: str, title: str, column: str, note: str = "", unit: str = "", factor: float = 1.0) -> Chart:
        series = []
        for run in runs:
            steps, values = run.log.steps.known(column)
            series.append(Series(run.label_of(title.lower()), steps, values * factor, run=run.number))
        return Chart(name, title, series, note, unit, scale="zero", smooth=True)

    pauses: list[Series] = []
    for run in runs:
        pauses += run.event_series("checkpoint", run.log.of(Saved), lambda event: event.seconds)
        pauses += run.event_series("evaluation", run.log.of(Evaluated), lambda event: event.seconds)
    used = "Model FLOPs utilisation: the part of the device's peak that is used."
    blocks: list[Block] = [
        chart("throughput", "Tokens a second", "tokens_per_second"),
        chart("mfu", "MFU", "mfu", used, unit="%", factor=100),
        chart("seconds", "Seconds a step", "seconds", unit="s"),
        chart("waited", "Waited for data", "waited", "Seconds of each step.", "s"),
        Chart("pauses", "Checkpoints and evaluations", pauses, "Seconds each took.", "s", scale="zero"),
        chart("memory", "Memory of the process", "memory", "Of rank 0, on its machine.", unit="bytes"),
        _device_chart(runs),
        PageTable(
            "device-memory",
            "Memory of a device by stage",
            ["stage", "active", "reserved", "of", "predicted", "error", "allocator retries"],
            [row for run in runs for row in _device_rows(run)],
            "The most of any rank. Active: held by tensors. Reserved: taken from the device. "
            "Retries: times that the allocator found no room at first, which is slow.",
            numbers=(1, 2, 3, 4, 5, 6),
        ),
        PageTable(
            "time",
            "Where the time went",
            ["run", "steps", "of it for data", "evaluations", "checkpoints", "launches", "first to last event"],
            [_time_row(run) for run in runs if len(run.log.steps)],
            "Checkpoints written in the background count in full. Steps that a resume took again count once.",
            numbers=(1, 2, 3, 4, 5, 6),
        ),
    ]
    return Section("speed", "Speed", blocks)


def _device_chart(runs: list[ShownRun]) -> Chart:
    names = ("active", "reserved", "predicted")
    series = [
        Series(run.label_of(name), *run.log.steps.known(f"device_memory/{name}"), run=run.number)
        for run in runs
        for name in names
    ]
    note = "Peaks since the stage began, the most of any rank."
    return Chart("device-memory-chart", "Memory of a device", series, note, "bytes", scale="zero")


def _device_rows(run: ShownRun) -> list[list[str]]:
    """For every stage whose devices were measured, its last figures."""
    columns, rows = run.log.steps, []
    measured = columns.steps * ~np.isnan(columns.column("device_memory/active"))
    for stage in run.plan["stages"]:
        if stage["start"] is None:
            continue
        (own,) = np.nonzero((measured > stage["start"]) & (measured <= (stage["end"] or run.taken)))
        if own.size:
            keys = ("active", "reserved", "total", "predicted", "retries")
            figures = {key: float(columns.column(f"device_memory/{key}")[own[-1]]) for key in keys}
            rows.append([run.label_of(stage["name"]), *_device_cells(figures)])
    return rows


def _device_cells(figures: dict[str, float]) -> list[str]:
    sizes = [f"{figures[key] / 1e9:,.2f} GB" for key in ("active", "reserved", "total")]
    predicted, active = figures["predicted"], max(1.0, figures["active"])
    error = ["", ""] if np.isnan(predicted) else [f"{predicted / 1e9:,.2f} GB", f"{predicted / active - 1:+.1%}"]
    return [*sizes, *error, f"{figures['retries']:,.0f}"]


def _time_row(run: ShownRun) -> list[str]:
    columns, log = run.log.steps, run.log
    stepping = float(np.nansum(columns.column("seconds")))
    waited = float(np.nansum(columns.column("waited")))
    outside = [sum(event.seconds for event in events) for events in (log.of(Evaluated), log.of(Saved))]
    wall = (log.last_time or 0.0) - (log.first_time or 0.0)
    data = f"{duration(waited)} ({percent(waited, stepping)})"
    launches = f"{len(log.of(Started)):,}"
    return [run.label, duration(stepping), data, *map(duration, outside), launches, duration(wall)]


def stability_section(runs: list[ShownRun]) -> Section:
    """Gradient norms, learning rate, extra figures, spikes, skipped steps and losses that are not finite."""
    norms = [Series(run.label_of("gradient norm"), *_positive(run, "grad_norm"), run=run.number) for run in runs]
    rates = [Series(run.label_of("taken"), *run.log.steps.known("lr/matrix"), run=run.number) for run in runs]
    blocks: list[Block] = [
        Chart("gradient-norm", "Gradient norm", norms, "Before clipping.", scale="log", smooth=True),
        Chart("lr", "Learning rate as taken", rates, "Of the layers' matrices.", scale="zero"),
        *_extra_charts(runs),
        *(_trouble_table(run) for run in runs),
    ]
    return Section("stability", "Stability", blocks)


def _positive(run: ShownRun, name: str) -> tuple[Any, Any]:
    steps, values = run.log.steps.known(name)
    drawn = np.isfinite(values) & (values > 0)  # a logarithmic axis has no others
    return steps[drawn], values[drawn]


def _extra_charts(runs: list[ShownRun]) -> list[Block]:
    found = ((table, name) for table in EXTRA_TABLES for run in runs for name in run.log.steps.under(table))
    return [
        Chart(
            f"extra-{number}",
            EXTRAS.get(name, (name.replace("_", " "), ""))[0],
            [Series(run.label_of(name), *run.log.steps.known(f"{table}/{name}"), run=run.number) for run in runs],
            EXTRAS.get(name, ("", ""))[1],
            smooth=True,
        )
        for number, (table, name) in enumerate(dict.fromkeys(found))
    ]


def _trouble_table(run: ShownRun) -> PageTable:
    rows: list[list[Any]] = [
        [event.step, "spike", f"{event.loss:.4f}", f"over {event.limit:.4f}", _documents(run, event.rows)]
        for event in run.log.of(Spiked)
    ]
    rows += [[event.step, "skipped", "", event.why, _documents(run, event.rows)] for event in run.log.of(Skipped)]
    steps, loss = run.log.steps.steps, run.log.steps.column("loss")
    bad = ~np.isfinite(loss)
    rows += [
        [int(step), "update", str(value), "not finite", ""] for step, value in zip(steps[bad], loss[bad], strict=True)
    ]
    shown = [[f"{step:,}", *cells] for step, *cells in sorted(rows, key=lambda row: row[0])]
    title, columns = run.label_of("Spikes and skipped steps"), ["step", "what", "loss", "why", "documents"]
    return long_table(f"troubles-{run.number}", title, columns, shown, numbers=(0, 2))


def _documents(run: ShownRun, file: str | None) -> str:
    """`web: 812, 97; code: 7`: the documents of a step's rows by source, the first of many."""
    documents: dict[str, dict[str, None]] = {}
    for row in run.rows.get(str(file), []):
        found = documents.setdefault(row["source"], {})
        found.update((f"{piece['document']:,}", None) for piece in row["pieces"])
    parts = []
    for source, numbers in documents.items():
        more = f" and {len(numbers) - MOST_DOCUMENTS:,} more" if len(numbers) > MOST_DOCUMENTS else ""
        parts.append(f"{source}: {', '.join([*numbers][:MOST_DOCUMENTS])}{more}")
    return "; ".join(parts)

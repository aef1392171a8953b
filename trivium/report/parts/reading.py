"""What was read: shares planned and read, epochs, how full the rows were."""

from typing import Any

import numpy as np

from trivium.report.charts import Block, Chart, PageTable, Section, Series, percent
from trivium.report.columns import bucket_edges, bucket_sums
from trivium.report.parts.plan import known_stages, share_points
from trivium.report.run import ShownRun

Record = dict[str, Any]
SHARE_BUCKETS = 240  # of steps, over which what was read is added up


def reading_section(runs: list[ShownRun]) -> Section:
    """Shares planned and read, epochs, and the part of slots that counts in the loss."""
    blocks: list[Block] = [
        Chart(
            "shares-read",
            "Shares of loss tokens, read" if len(runs) > 1 else "Shares of loss tokens, planned and read",
            [series for run in runs for series in read_shares(run)],
            "Loss tokens are those that count in the loss, here added up over neighbouring steps. "
            + ("A plan's shares are under Plan." if len(runs) > 1 else "Solid: read. Dashed: planned."),
            unit="%",
            scale="zero",
            wide=True,
        ),
        Chart(
            "epochs",
            "Epochs",
            [series for run in runs for series in run.source_series("epochs")],
            "How many times each source has been read so far.",
            scale="zero",
        ),
        Chart(
            "loss-tokens",
            "Slots that count in the loss",
            [_loss_tokens_series(run) for run in runs],
            "The other slots of a step are padding, the last token of a document, or masked.",
            unit="%",
        ),
        *(_read_table(run) for run in runs),
    ]
    return Section("reading", "What was read", blocks)


def read_shares(run: ShownRun) -> list[Series]:
    """Of each source: its share of the loss tokens of neighbouring steps, and the planned one."""
    columns = run.log.steps
    if not len(columns):
        return []
    edges = bucket_edges(len(columns), SHARE_BUCKETS)
    ends = np.append(edges[1:], len(columns)) - 1
    loss_tokens = {name: bucket_sums(columns.column(f"loss_tokens_by_source/{name}"), edges) for name in run.sources}
    total = np.maximum(1, sum(loss_tokens.values()))
    planned = planned_shares(run.plan)
    found = []
    for name, read in loss_tokens.items():
        if not read.any():
            continue
        settings: Record = {"source": name, "run": run.number}
        found.append(Series(run.label_of(name), columns.steps[ends], read / total * 100, **settings))
        if not run.several:
            steps = [step for step, _ in planned]
            values = [shares.get(name, 0.0) * 100 for _, shares in planned]
            found.append(Series.of(f"{name}, planned", steps, values, style="dashed", **settings))
    return found


def planned_shares(plan: Record) -> list[tuple[int, dict[str, float]]]:
    """The planned shares of loss tokens: shares of rows times the loss tokens of a row of each source."""
    points = []
    stages = known_stages(plan)
    for step, shares in share_points(plan):
        stage = next(stage for stage in stages if step <= stage["end"])
        loss_tokens = {name: share * _loss_tokens_of_row(stage, name) for name, share in shares.items()}
        total = sum(loss_tokens.values()) or 1.0
        points.append((step, {name: value / total for name, value in loss_tokens.items()}))
    return points


def _loss_tokens_of_row(stage: Record, name: str) -> float:
    use = stage.get("uses", {}).get(name) or {}
    if use.get("loss_tokens") is None or not use["rows"]:
        return float(stage["seq_len"])
    return float(use["loss_tokens"] / use["rows"])


def _loss_tokens_series(run: ShownRun) -> Series:
    columns = run.log.steps
    if not len(columns):
        return Series.of(run.label_of("loss tokens"), [], [])
    edges = bucket_edges(len(columns), SHARE_BUCKETS)
    slots, loss_tokens = (bucket_sums(columns.column(name), edges) for name in ("tokens", "loss_tokens"))
    ends = np.append(edges[1:], len(columns)) - 1
    shares = 100 * loss_tokens / np.maximum(1, slots)
    return Series(run.label_of("loss tokens"), columns.steps[ends], shares, run=run.number)


def _read_table(run: ShownRun) -> PageTable:
    """Of each stage and source: loss tokens planned, and read in the steps taken."""
    columns, rows = run.log.steps, []
    steps = columns.steps
    for stage in known_stages(run.plan):
        inside = (steps > stage["start"]) & (steps <= stage["end"])
        if not inside.any():
            continue
        names = [name for name in run.sources if (stage.get("uses", {}).get(name) or {}).get("rows")]
        read = {name: float(np.nansum(columns.column(f"loss_tokens_by_source/{name}")[inside])) for name in names}
        planned = {name: stage["uses"][name]["loss_tokens"] for name in names}
        whole = int(inside.sum()) == stage["steps"]
        for number, name in enumerate(names):
            known = None not in planned.values()
            cells = [percent(planned[name], sum(planned.values())), f"{planned[name]:,}"] if known else ["?", "?"]
            share = percent(read[name], sum(read.values()))
            so_far = "" if whole else f", {int(inside.sum()):,} steps so far"
            stage_name = stage["name"] + so_far if number == 0 else ""
            rows.append([stage_name, name, cells[0], share, cells[1], f"{read[name]:,.0f}"])
    columns_shown = ["stage", "source", "share planned", "share read", "loss tokens planned", "loss tokens read"]
    note, title = "Planned: of the whole stage. Read: in all steps taken.", run.label_of("Planned and read")
    numbers = (2, 3, 4, 5)
    return PageTable(f"read-{run.number}", title, columns_shown, rows, note, numbers=numbers, sources=(1,))

"""What was read: shares planned and given, epochs, how full the rows were."""

from typing import Any

import numpy as np

from trivium.report.charts import Block, Chart, Section, Series, Table
from trivium.report.common import percent, source_series
from trivium.report.plan_part import known_stages, share_points
from trivium.report.run import Shown
from trivium.report.thin import bucket_edges, bucket_sums

Record = dict[str, Any]
SHARE_BUCKETS = 240  # of steps, over which what was read is added up


def reading_section(runs: list[Shown]) -> Section:
    """Shares planned and given, epochs, and how full the rows were."""
    blocks: list[Block] = [
        Chart(
            "shares-given",
            "Shares of learnt tokens, given" if len(runs) > 1 else "Shares of learnt tokens, planned and given",
            [series for run in runs for series in given_shares(run)],
            "Added up over neighbouring steps. "
            + ("As given; a plan's shares are under Plan." if len(runs) > 1 else "Solid: given. Dashed: planned."),
            unit="%",
            scale="zero",
            wide=True,
        ),
        Chart(
            "epochs",
            "Epochs",
            [series for run in runs for series in source_series(run, "epochs")],
            "How often each source has been read so far.",
            scale="zero",
        ),
        Chart(
            "learnt",
            "Slots that are learnt",
            [_learnt_series(run) for run in runs],
            "The rest of a step's slots is padding, the last token of a document, or masked.",
            unit="%",
        ),
        *(_given_table(run) for run in runs),
    ]
    return Section("reading", "What was read", blocks)


def given_shares(run: Shown) -> list[Series]:
    """Of each source: its share of the learnt tokens of neighbouring steps, and the one that was planned."""
    columns = run.log.steps
    if not len(columns):
        return []
    edges = bucket_edges(len(columns), SHARE_BUCKETS)
    ends = np.append(edges[1:], len(columns)) - 1
    learnt = {name: bucket_sums(columns.column(f"loss_tokens_by_source/{name}"), edges) for name in run.sources}
    total = np.maximum(1, sum(learnt.values()))
    planned = planned_learnt(run.plan)
    found = []
    for name, given in learnt.items():
        if not given.any():
            continue
        settings: Record = {"source": name, "run": run.number}
        found.append(Series(run.label_of(name), columns.steps[ends], given / total * 100, **settings))
        if not run.several:
            steps = [step for step, _ in planned]
            values = [shares.get(name, 0.0) * 100 for _, shares in planned]
            found.append(Series.of(f"{name}, planned", steps, values, style="dashed", **settings))
    return found


def planned_learnt(plan: Record) -> list[tuple[int, dict[str, float]]]:
    """The planned shares of learnt tokens: shares of rows times what a row of each source holds."""
    points = []
    stages = known_stages(plan)
    for step, shares in share_points(plan):
        stage = next(stage for stage in stages if step <= stage["end"])
        learnt = {name: share * _learnt_of_row(stage, name) for name, share in shares.items()}
        total = sum(learnt.values()) or 1.0
        points.append((step, {name: value / total for name, value in learnt.items()}))
    return points


def _learnt_of_row(stage: Record, name: str) -> float:
    given = stage["uses"].get(name) or {}
    if given.get("loss_tokens") is None or not given["rows"]:
        return float(stage["seq_len"])
    return float(given["loss_tokens"] / given["rows"])


def _learnt_series(run: Shown) -> Series:
    columns = run.log.steps
    if not len(columns):
        return Series.of(run.label_of("loss_tokens"), [], [])
    edges = bucket_edges(len(columns), SHARE_BUCKETS)
    slots, learnt = (bucket_sums(columns.column(name), edges) for name in ("tokens", "loss_tokens"))
    ends = np.append(edges[1:], len(columns)) - 1
    return Series(run.label_of("loss_tokens"), columns.steps[ends], 100 * learnt / np.maximum(1, slots), run=run.number)


def _given_table(run: Shown) -> Table:
    """Of each stage and source: learnt tokens planned for the steps taken, and given."""
    columns, rows = run.log.steps, []
    steps = columns.steps
    for stage in known_stages(run.plan):
        inside = (steps > stage["start"]) & (steps <= stage["end"])
        if not inside.any():
            continue
        names = [name for name in run.sources if (stage["uses"].get(name) or {}).get("rows")]
        given = {name: float(np.nansum(columns.column(f"loss_tokens_by_source/{name}")[inside])) for name in names}
        planned = {name: stage["uses"][name]["loss_tokens"] for name in names}
        whole = int(inside.sum()) == stage["steps"]
        for number, name in enumerate(names):
            known = None not in planned.values()
            cells = [percent(planned[name], sum(planned.values())), f"{planned[name]:,}"] if known else ["?", "?"]
            share = percent(given[name], sum(given.values()))
            so_far = "" if whole else f" of {int(inside.sum()):,} steps"
            stage_name = stage["name"] + so_far if number == 0 else ""
            rows.append([stage_name, name, cells[0], share, cells[1], f"{given[name]:,.0f}"])
    columns_shown = ["stage", "source", "share planned", "share given", "learnt, whole stage", "learnt, given"]
    note = "Of learnt tokens, from all steps taken."
    return Table(
        f"given-{run.number}",
        run.label_of("Planned and given"),
        columns_shown,
        rows,
        note,
        numbers=(2, 3, 4, 5),
        sources=(1,),
    )

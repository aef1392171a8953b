"""The plan's part of a page: its pictures, its tables, its warnings; also before the run.

A step is drawn where it is taken: the plan's value for step 0 is drawn at 1, where the first update is completed.
"""

import math
from collections.abc import Callable
from typing import Any

from trivium.config.batches import Batches
from trivium.config.numbers import show_count
from trivium.config.stages import CROPPING
from trivium.forecast.show import advice_lines, headline, memory_rows, time_rows
from trivium.plan.export import objective_lines
from trivium.report.charts import Block, Chart, PageTable, Panel, Section, Series, Text, percent
from trivium.report.plan_file import batches_of
from trivium.report.run import ShownRun

Record = dict[str, Any]
UNKNOWN = "?"
PLAN_TEXTS = {
    "decisions": "Decided while it ran",
    "learning_rates": "Learning rates",
    "objectives": "Ends on figures, batch sizes that change, positions and objectives",
    "differs": "Differs from theirs",
    "decides_nothing": "Decides nothing here",
    "warnings": "Warnings",
    "unknown": "Not known",
}
FADE_POINTS = 100  # at least, of a fade that has as many steps


def plan_section(runs: list[ShownRun]) -> Section:
    """The pictures of every run's plan over one step axis, and the first run's tables."""
    charts = [shares_chart(run, several=len(runs) > 1) for run in runs]
    charts += [
        Chart("plan-lr", "Learning rate", _lr_series(runs), scale="zero", small=True),
        Chart("plan-rows", "Row length (tokens)", _stepped(runs, "row length", _lengths), scale="zero", small=True),
        Chart("plan-batch", "Batch size (rows)", _stepped(runs, "batch size", _sizes), scale="zero", small=True),
    ]
    lead = "What each step reads and its learning rate, as planned before the first step."
    open_ended = [run.label_of(stage["name"]) for run in runs for stage in run.plan["stages"] if may_end_early(stage)]
    if open_ended:
        lead = f"{lead} Stages that may end earlier, on a figure, are drawn at their longest: {', '.join(open_ended)}."
    note = "Shares are of a stage's rows. A fade moves them row by row within the first steps of the new stage"
    note = f"{note}; a centred one begins in the last steps of the stage before."
    panel = Panel("plan-picture", "", charts, note)
    blocks: list[Block] = [panel]
    for run in runs:
        blocks += plan_tables(run, several=len(runs) > 1)
    return Section("plan", "Plan", blocks, lead)


def plan_tables(run: ShownRun, *, several: bool) -> list[Block]:
    """Stages, what each reads of each source, the sources; notes, warnings and what is not known."""
    of, key = (f" of {run.label}" if several else ""), (f"-{run.number}" if several else "")
    return [
        *_plan_texts(run, of, key),
        *_forecast(run.plan.get("forecast"), of, key),
        PageTable(
            f"stages{key}",
            f"Stages{of}",
            ["stage", "steps", "tokens", "rows x length", "packing", "learning rate"],
            [_stage_row(run.plan, stage) for stage in run.plan["stages"]],
            numbers=(1, 2, 3, 5),
            folded=several,
        ),
        PageTable(
            f"reads{key}",
            f"What each stage reads{of}",
            ["stage", "source", "share", "tokens", "loss tokens", "epochs", "total", "padding", "cut", "dropped"],
            [row for stage in run.plan["stages"] for row in _use_rows(stage)],
            note="Loss tokens: those that count in the loss. Padding: slots without a token. "
            "Cut: pieces whose document continues elsewhere. Dropped: tokens that cropping leaves out.",
            numbers=tuple(range(2, 10)),
            sources=(1,),
            folded=several,
        ),
        PageTable(
            f"sources{key}",
            f"Sources{of}",
            ["source", "kind", "documents", "tokens"],
            [row for name, source in run.plan["sources"].items() for row in _source_rows(name, source)],
            numbers=(2, 3),
            sources=(0,),
            folded=True,
        ),
    ]


def _plan_texts(run: ShownRun, of: str, key: str) -> list[Block]:
    """What stages have beside their rows; the plan's notes and warnings, and what it does not know."""
    lines = {**run.plan, "objectives": objective_lines(run.plan["stages"])}
    return [
        Text(f"plan-{kind}{key}", title + of, "\n".join(lines.get(kind) or []), plain=True)
        for kind, title in PLAN_TEXTS.items()
    ]


def _forecast(forecast: Record | None, of: str, key: str) -> list[Block]:
    """Memory, time and cost on devices, where the plan was held against some."""
    if forecast is None:
        return []
    where = headline(forecast)
    found = {
        ("memory", "Memory", f"At its peak, {where}."): memory_rows(forecast),
        ("time", "Time and cost", f"Without evaluations and saves, {where}."): time_rows(forecast),
    }
    tables = [
        PageTable(f"{name}{key}", f"{title}{of}", headers, rows, note=note, numbers=tuple(range(1, len(headers))))
        for (name, title, note), (headers, rows) in found.items()
    ]
    advice = "\n".join(advice_lines(forecast))
    return [Text(f"forecast-advice{key}", f"What would make it fit{of}", advice, plain=True), *tables]


def _source_rows(name: str, source: Record) -> list[list[str]]:
    """A source, and each task that it mixes."""
    fim = source.get("fim")
    kind = source["kind"] if fim is None else f"{source['kind']}, fim {fim['rate']:.4g}"
    rows = [(str(kind), source), *((f"task {task['task']}", task) for task in source.get("tasks") or ())]
    return [[name, kind, _count(of["documents"]), _size(of)] for kind, of in rows]


def _size(source: Record) -> str:
    """Its tokens, or `~1.3T`, those that it is expected to have."""
    expected = source.get("expected_tokens")
    return _count(source["tokens"]) if source["tokens"] is not None or expected is None else f"~{_count(expected)}"


def known_stages(plan: Record) -> list[Record]:
    """The stages whose first and last step are known."""
    return [stage for stage in plan["stages"] if stage["start"] is not None and stage["end"] is not None]


def shares_chart(run: ShownRun, *, several: bool) -> Chart:
    points = share_points(run.plan)
    steps = [step for step, _ in points]
    series = []
    for name in run.sources:
        values = [shares.get(name, 0.0) * 100 for _, shares in points]
        if any(values):
            series.append(Series.of(name, steps, values, style="stepped", source=name, run=run.number))
    title = f"Shares of {run.label}" if several else "Shares"
    return Chart(f"plan-shares-{run.number}", title, series, unit="%", stacked=True)


def share_points(plan: Record) -> list[tuple[int, dict[str, float]]]:
    """The planned shares of some steps; each holds for the steps since the point before it.

    A stage of 40 steps without a fade is one point, at 40; a fade has a point for every step, or some of them.
    """
    points: list[tuple[int, dict[str, float]]] = []
    stages = known_stages(plan)
    for number, stage in enumerate(stages):
        own = stage["shares"]
        if own is None:
            break
        before, after = (
            stages[each]["shares"] if 0 <= each < len(stages) else own for each in (number - 1, number + 1)
        )
        if not points:
            points.append((stage["start"], own))
        batches, following = batches_of(stage), stages[number + 1] if stage.get("fade_out_rows") else None
        for step in _fade_steps(stage, batches):
            old, new = _parts(stage, batches, following, step)
            points.append((stage["start"] + step, faded(faded(own, before or own, old), after or own, new)))
    return points


def _fade_steps(stage: Record, batches: Batches) -> list[int]:
    """The steps of a stage, counted from 1, after which its shares change; the last one is always among them."""
    steps = stage["steps"]
    ends = batches.steps_for((stage["fade_rows"] or 0) - stage.get("fade_rows_before", 0))
    begins = steps - batches.place_of(max(0, batches.rows_before(steps) - stage.get("fade_out_rows", 0)))[0]
    fade_in = range(0, min(steps, ends) + 1, max(1, ends // FADE_POINTS))
    fade_out = range(steps, max(0, steps - begins), -max(1, begins // FADE_POINTS))
    return sorted({*fade_in, min(steps, ends), max(0, steps - begins), *fade_out, steps} - {0})


def _parts(stage: Record, batches: Batches, following: Record | None, step: int) -> tuple[float, float]:
    """The parts of a step's rows that come from the mixture before, and from the next stage's."""
    rows = stage["fade_rows"] or 0
    around = [batches.rows_before(each) for each in (step - 1, step)]
    batch = around[1] - around[0]
    here = [_new_rows(each + stage.get("fade_rows_before", 0), rows, stage) for each in around]
    if following is None:
        return 1 - (here[1] - here[0]) / batch, 0.0
    out = stage["fade_out_rows"]
    past = [max(0, each - batches.rows_before(stage["steps"]) + out) for each in around]
    there = [_new_rows(each, 2 * out, following) for each in past]
    return 1 - (here[1] - here[0]) / batch, (there[1] - there[0]) / batch


def _new_rows(rows: int, fade_rows: int, stage: Record) -> float:
    """The number of a fade's first rows that come from the new mixture; `stage` is the one that has the fade."""
    if rows >= fade_rows:
        return rows - fade_rows / 2
    at = rows / fade_rows
    if stage.get("fade_shape") == "cosine":
        return fade_rows * (at / 2 - math.sin(math.pi * at) / (2 * math.pi))
    if stage.get("fade_shape") == "sigmoid":
        steepness: float = stage["fade_steepness"]
        rise = math.log1p(math.exp(steepness * (at - 0.5))) - math.log1p(math.exp(-steepness / 2))
        return fade_rows * rise / steepness
    return rows * rows / (2 * fade_rows)


def faded(before: dict[str, float], after: dict[str, float], part: float) -> dict[str, float]:
    """Shares on their way from one mixture to the next."""
    names = [*after, *(name for name in before if name not in after)]
    return {name: before.get(name, 0.0) * (1 - part) + after.get(name, 0.0) * part for name in names}


def _lr_series(runs: list[ShownRun]) -> list[Series]:
    """The planned learning rate of the layers' matrices, and of each group that has another curve."""
    found = []
    for run in runs:
        curves = {"matrix": run.plan.get("lr_curve"), **(run.plan.get("group_lr_curves") or {})}
        for group, curve in curves.items():
            if curve:
                steps = [step + 1 for step, _ in curve]
                values = [multiplier * _peak_at(run.plan, step, group) for step, multiplier in curve]
                label = "learning rate" if group == "matrix" else f"learning rate of {group}"
                found.append(Series.of(run.label_of(label), steps, values, run=run.number))
    return found


def _peak_at(plan: Record, step: float, group: str) -> float:
    """A group's peak learning rate in the stage that a step belongs to."""
    stage = next((each for each in known_stages(plan) if each["start"] <= step < each["end"]), {})
    return _peak_of(plan, stage, group)


def _peak_of(plan: Record, stage: Record, group: str = "matrix") -> float:
    peaks: dict[str, float] = stage.get("peak_lr") or plan.get("peak_lr", {})
    return peaks.get(group, 1.0)


def _stepped(runs: list[ShownRun], label: str, values: Callable[[Record], list[tuple[int, int]]]) -> list[Series]:
    """A value that holds from a step of a stage on, at the first and the last step that have it."""
    found = []
    for run in runs:
        steps, shown = [], []
        for stage in known_stages(run.plan):
            pieces = values(stage)
            ends = [*(step for step, _ in pieces[1:]), stage["end"] - stage["start"]]
            for (first, value), end in zip(pieces, ends, strict=True):
                steps += [stage["start"] + first + 1, stage["start"] + end]
                shown += [value, value]
        found.append(Series.of(run.label_of(label), steps, shown, style="stepped", run=run.number))
    return found


def _lengths(stage: Record) -> list[tuple[int, int]]:
    return [(0, stage["seq_len"])]


def _sizes(stage: Record) -> list[tuple[int, int]]:
    """Each batch size with the stage's step that it begins at."""
    reached = batches_of(stage).until(max(1, stage["end"] - stage["start"]))
    return [(piece.step, piece.size) for piece in reached]


def _stage_row(plan: Record, stage: Record) -> list[str]:
    peak = _peak_of(plan, stage)
    rates = [UNKNOWN if end is None else f"{end * peak:.3g}" for end in stage["lr_multiplier"].values()]
    ends = [UNKNOWN if end is None else f"{end:,}" for end in (stage["start"], stage["end"])]
    return [
        stage["name"],
        f"[{ends[0]}, {ends[1]}){'*' * may_end_early(stage)}",
        _count(stage["tokens"]),
        f"{_rows_shown(stage)} x {stage['seq_len']:,}",
        stage["packing"],
        rates[0] if rates[0] == rates[1] else f"{rates[0]} to {rates[1]}",
    ]


def may_end_early(stage: Record) -> bool:
    """Whether a stage ends on a figure, and has not yet."""
    return stage.get("until") is not None and not stage.get("ended_early")


def _rows_shown(stage: Record) -> str:
    """Rows in a step; of a stage whose size changes the smallest and the largest."""
    sizes = sorted({piece.size for piece in batches_of(stage).pieces})
    return f"{sizes[0]:,}" if len(sizes) == 1 else f"{sizes[0]:,}-{sizes[-1]:,}"


def _use_rows(stage: Record) -> list[list[str]]:
    shares = stage["shares"] or {}
    rows = []
    for number, name in enumerate(list(stage.get("uses", {})) or list(shares)):
        use = stage.get("uses", {}).get(name, {})
        rows.append(
            [
                stage["name"] if number == 0 else "",
                name,
                f"{shares[name] * 100:.4g}%" if name in shares else "fading" if shares else UNKNOWN,
                _count(use.get("tokens")),
                ("~" if use.get("loss_tokens_expected") else "") + _count(use.get("loss_tokens")),
                _times(use, "epochs"),
                _times(use, "epochs_so_far"),
                *packed_figures(stage, use.get("figures")),
            ]
        )
    return rows


def packed_figures(stage: Record, figures: Record | None) -> tuple[str, str, str]:
    """Padding, pieces that are cut, tokens that are dropped."""
    if figures is None:
        return UNKNOWN, UNKNOWN, UNKNOWN
    slots = figures["rows"] * (stage["seq_len"] + (stage["packing"] in CROPPING))
    dropped = figures["consumed"] - figures["tokens"]
    return (
        percent(slots - figures["tokens"], slots),
        percent(figures["cut"], figures["pieces"]),
        percent(dropped, figures["consumed"]),
    )


def _count(count: int | None) -> str:
    return UNKNOWN if count is None else show_count(count)


def _times(use: Record, key: str) -> str:
    """Epochs; `~1.20` where they are of tokens that are expected, and not counted."""
    epochs = use.get(key)
    about = "" if use.get("figures") else "~"
    return UNKNOWN if epochs is None else f"{about}{epochs:,.2f}"

"""Loss and validation of the runs of a page."""

from collections.abc import Callable, Iterator
from itertools import chain, repeat
from operator import itemgetter
from typing import Any

from trivium.report.changes import Change, stage_changes
from trivium.report.charts import Block, Chart, Section, Series, Table
from trivium.report.common import event_series, long_table, source_series
from trivium.report.run import Shown

AT_BOUNDARY = "Where two stages meet and both were evaluated, each has its own figure, on its own rows."

Record = dict[str, Any]


def loss_section(runs: list[Shown]) -> Section:
    """Training loss: overall with its running mean, by source, and bits per byte where evaluations tell."""
    overall = [series for run in runs for series in _loss_series(run)]
    by_source = [series for run in runs for series in source_series(run, "loss_by_source")]
    blocks: list[Block] = [
        Chart(
            "loss",
            "Training loss",
            overall,
            "Nats a token, every step; the strong line is the running mean.",
            wide=True,
        ),
        Chart(
            "loss-by-source", "Training loss by source", by_source, "Nats a token, of each source's rows.", wide=True
        ),
    ]
    return Section("loss", "Loss", blocks)


def _loss_series(run: Shown) -> list[Series]:
    steps = run.log.steps
    return [
        Series(run.label_of("loss"), *steps.known("loss"), style="faint", run=run.number),
        Series(run.label_of("running mean"), *steps.known("mean_loss"), run=run.number),
    ]


def validation_section(runs: list[Shown]) -> Section:
    """Evaluations: loss, bits per byte and scores, overall and by source."""

    def series(key: str) -> list[Series]:
        return [each for run in runs for each in evaluation_series(run, key)]

    blocks: list[Block] = [
        Chart(
            "validation-loss",
            "Validation loss",
            series("loss"),
            f"Nats a token, on documents never trained on. {AT_BOUNDARY}",
        ),
        Chart(
            "validation-bpb",
            "Bits per byte",
            series("bits_per_byte"),
            f"Of the same; knows no tokenizer. {AT_BOUNDARY}",
        ),
        Chart(
            "scores",
            "Scores",
            [each for run in runs for each in _score_series(run)],
            "The part of a task's questions that is answered right; centred: 0 is guessing, 1 is all right.",
        ),
    ]
    for run in runs:
        blocks += [*_change_tables(run), _evaluation_table(run), _score_table(run)]
    return Section("validation", "Validation", blocks)


def evaluation_series(run: Shown, key: str) -> list[Series]:
    """A figure of the evaluations, overall and by source."""
    events = run.log.of("evaluated")
    series = event_series(run.label_of("overall"), events, itemgetter(key), run)
    for name in run.sources:
        series += event_series(run.label_of(name), events, _within(f"{key}_by_source", name), run, source=name)
    return series


def _score_series(run: Shown) -> list[Series]:
    """Scores of tasks, their mean once guessing is taken off, and those that an evaluator of one's own gave."""
    events = run.log.of("evaluated")
    names = dict.fromkeys(name for event in events for name in event.get("scores", {}))
    series = []
    for name in names:
        series += event_series(run.label_of(name), events, _within("scores", name), run)
    scored = run.log.of("scored")
    tasks = dict.fromkeys(name for event in scored for name in event["scores"])
    for name in tasks:
        series += event_series(run.label_of(name), scored, _score_of(name), run)
    if len(tasks) > 1:
        series += event_series(run.label_of("mean, centred"), scored, itemgetter("overall"), run)
    return series


def _score_of(task: str) -> Callable[[Record], Any]:
    return lambda event: event["scores"].get(task, {}).get("score")


def _within(table: str, name: str) -> Callable[[Record], Any]:
    return lambda event: event.get(table, {}).get(name)


def _change_tables(run: Shown) -> list[Table]:
    """What each stage gained and forgot."""
    changes = list(stage_changes(run.label, run.plan, run.log))
    losses = [
        [stage, source, *_cells(figures["loss"]), *_cells(figures["bits_per_byte"])]
        for change in changes
        for stage, (source, figures) in zip(_once(change.stage), change.sources.items(), strict=False)
    ]
    scores = [
        [stage, task, *_cells(score)]
        for change in changes
        for stage, (task, score) in zip(_once(change.stage), change.scores.items(), strict=False)
    ]
    columns = ["stage", "source", "nats before", "after", "change", "bits per byte before", "after", "change"]
    title, numbers = run.label_of("Before and after each stage"), tuple(range(2, 8))
    asked = ["stage", "task", "score before", "after", "change"]
    asked_title = run.label_of("Scores before and after each stage")
    return [
        Table(f"changes-{run.number}", title, columns, losses, numbers=numbers, sources=(1,)),
        Table(f"score-changes-{run.number}", asked_title, asked, scores, numbers=numbers[:3]),
    ]


def _once(stage: str) -> Iterator[str]:
    """A stage's name in the first of its rows."""
    return chain([stage], repeat(""))


def _cells(change: Change) -> list[str]:
    signed = "" if change.change is None else f"{change.change:+.4f}"
    return [*_numbers(change.before, change.after), signed]


def _evaluation_table(run: Shown) -> Table:
    events = run.log.of("evaluated")
    scores = list(dict.fromkeys(name for event in events for name in event.get("scores", {})))
    names = [name for name in run.sources if any(name in event["loss_by_source"] for event in events)]
    rows = []
    for event in events:
        numbers = [event["loss"], event["bits_per_byte"], *(event["loss_by_source"].get(name) for name in names)]
        numbers += [event.get("scores", {}).get(name) for name in scores]
        rows.append([f"{event['step']:,}", event.get("stage", ""), *_numbers(*numbers)])
    columns = ["step", "stage", "loss", "bits per byte", *(f"loss of {name}" for name in names), *scores]
    title = run.label_of("Evaluations")
    numeric = (0, *range(2, len(columns)))
    return long_table(f"evaluations-{run.number}", title, columns, rows, numbers=numeric, folded=True)


def _numbers(*values: float | None) -> list[str]:
    return ["" if value is None else f"{value:.4f}" for value in values]


def _score_table(run: Shown) -> Table:
    rows = [
        [f"{event['step']:,}", name, f"{score['right']:,} of {score['questions']:,}"]
        + [f"{score[key]:.3f}" for key in ("score", "chance", "centred")]
        for event in run.log.of("scored")
        for name, score in event["scores"].items()
    ]
    columns = ["step", "task", "right", "score", "chance", "centred"]
    title = run.label_of("All scores")
    return long_table(f"score-table-{run.number}", title, columns, rows, numbers=(0, 2, 3, 4, 5), folded=True)

"""Loss and validation of the runs of a page."""

from collections.abc import Callable, Iterator, Mapping
from itertools import chain, repeat

from trivium.report.changes import Change, stage_changes
from trivium.report.charts import Block, Chart, PageTable, Section, Series, long_table
from trivium.report.run import ShownRun
from trivium.report.summary import other_questions, other_rows
from trivium.run.events import Evaluated, Scored

BROKEN = "A line is broken where what is evaluated changes: figures on both sides cannot be compared."
OF_AVERAGE = "Average: with the average of the weights, which at a constant learning rate imitates its decay."
Figure = Callable[[Evaluated], float | None]
Figures = Callable[[Evaluated], Mapping[str, float | None]]
FIGURES: tuple[tuple[Figure, Figures], ...] = (
    (lambda event: event.loss, lambda event: event.loss_by_source),
    (lambda event: event.bits_per_byte, lambda event: event.bits_per_byte_by_source),
)


def loss_section(runs: list[ShownRun]) -> Section:
    """Training loss: overall with its running mean, and by source."""
    overall = [series for run in runs for series in _loss_series(run)]
    by_source = [series for run in runs for series in run.source_series("loss_by_source")]
    note = "Nats a token at every step; the strong line is the running mean."
    note_by_source = "Nats a token, of each source's rows."
    blocks: list[Block] = [
        Chart("loss", "Training loss", overall, note, wide=True, smooth=True),
        Chart("loss-by-source", "Training loss by source", by_source, note_by_source, wide=True, smooth=True),
    ]
    return Section("loss", "Loss", blocks)


def _loss_series(run: ShownRun) -> list[Series]:
    steps = run.log.steps
    return [
        Series(run.label_of("loss"), *steps.known("loss"), style="faint", run=run.number),
        Series(run.label_of("running mean"), *steps.known("mean_loss"), run=run.number),
    ]


def validation_section(runs: list[ShownRun]) -> Section:
    """Evaluations: loss, bits per byte and scores, overall and by source."""
    losses, bits = ([each for run in runs for each in _evaluation_series(run, *figures)] for figures in FIGURES)
    scores = [each for run in runs for each in _score_series(run)]
    positions = [each for run in runs for each in _position_series(run)]
    unseen = f"Nats a token, on documents never trained on. {BROKEN}"
    if any(run.log.of_average(Evaluated) for run in runs):
        unseen = f"{unseen} {OF_AVERAGE}"
    same = f"Of the same documents. {BROKEN}"
    right = f"The part of a task's questions that is answered right. Centred: 0 is guessing, 1 is all right. {BROKEN}"
    far = f"Nats a token, by the position of a token in its document: up to the next line's. {BROKEN}"
    blocks: list[Block] = [
        Chart("validation-loss", "Validation loss", losses, unseen),
        Chart("validation-bpb", "Bits per byte", bits, same),
        Chart("scores", "Scores", scores, right),
        Chart("validation-by-position", "Validation loss by position", positions, far),
    ]
    for run in runs:
        blocks += [*_change_tables(run), _evaluation_table(run), _position_table(run), _score_table(run)]
    return Section(
        "validation", "Validation", blocks, " ".join(filter(None, (other_rows(runs), other_questions(runs))))
    )


def _evaluation_series(run: ShownRun, overall: Figure, by_source: Figures) -> list[Series]:
    """A figure of the evaluations, overall and by source; overall also that of the average, where both were measured.

    At a constant learning rate the average's line is about what the model would score after a decay, without one.
    """
    events = run.log.measured(Evaluated)
    series = run.event_series("overall", events, overall, measured_on=_all_rows)
    series += run.event_series("overall, average", run.log.of_average(Evaluated), overall, measured_on=_all_rows)
    for name in run.sources:
        series += run.event_series(name, events, _picks(name, by_source), name, _measured(name))
    return series


def _all_rows(event: Evaluated) -> str:
    return event.fingerprint


def _picks(name: str, table: Figures) -> Figure:
    return lambda event: table(event).get(name)


def _measured(source: str) -> Callable[[Evaluated], str]:
    return lambda event: event.fingerprint_of(source)


def _score_series(run: ShownRun) -> list[Series]:
    """Scores that the user's own evaluator gave, of tasks, and the mean of the centred ones; then the average's."""
    log = run.log
    series = _scores_of(run, log.measured(Evaluated), log.measured(Scored))
    return series + _scores_of(run, log.of_average(Evaluated), log.of_average(Scored), ", average")


def _scores_of(run: ShownRun, events: list[Evaluated], scored: list[Scored], kind: str = "") -> list[Series]:
    series = []
    for name in _own_scores(events):
        series += run.event_series(f"{name}{kind}", events, _picks(name, lambda event: event.scores))
    tasks = dict.fromkeys(name for event in scored for name in event.scores)
    for name in tasks:
        series += run.event_series(f"{name}{kind}", scored, _score_of(name), measured_on=_asked(name))
    scored = [event for event in scored if not event.harness]  # whose tasks are asked now and then
    if len({name for event in scored for name in event.scores}) > 1:
        mean, asked = (lambda event: event.overall), (lambda event: event.fingerprint)
        series += run.event_series(f"mean, centred{kind}", scored, mean, measured_on=asked)
    return series


def _own_scores(events: list[Evaluated]) -> list[str]:
    return list(dict.fromkeys(name for event in events for name in event.scores))


def _score_of(task: str) -> Callable[[Scored], float | None]:
    return lambda event: event.scores[task]["score"] if task in event.scores else None


def _asked(task: str) -> Callable[[Scored], str]:
    return lambda event: event.fingerprint_of(task)


def _change_tables(run: ShownRun) -> list[PageTable]:
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
        PageTable(f"changes-{run.number}", title, columns, losses, numbers=numbers, sources=(1,)),
        PageTable(f"score-changes-{run.number}", asked_title, asked, scores, numbers=numbers[:3]),
    ]


def _once(stage: str) -> Iterator[str]:
    """A stage's name in the first of its rows."""
    return chain([stage], repeat(""))


def _cells(change: Change) -> list[str]:
    signed = "" if change.change is None else f"{change.change:+.4f}"
    return [*_numbers(change.before, change.after), signed]


def _evaluation_table(run: ShownRun) -> PageTable:
    events = run.log.of(Evaluated)
    scores = _own_scores(events)
    names = [name for name in run.sources if any(name in event.loss_by_source for event in events)]
    weighted = ["weighted loss"] if any(event.weighted_loss is not None for event in events) else []
    rows = []
    for event in events:
        numbers = [event.loss, *([event.weighted_loss] if weighted else []), event.bits_per_byte]
        numbers += [event.loss_by_source.get(name) for name in names]
        numbers += [event.scores.get(name) for name in scores]
        rows.append([f"{event.step:,}", _stage_of(event), *_numbers(*numbers)])
    columns = ["step", "stage", "loss", *weighted, "bits per byte", *(f"loss of {name}" for name in names), *scores]
    title = run.label_of("Evaluations")
    numeric = (0, *range(2, len(columns)))
    return long_table(f"evaluations-{run.number}", title, columns, rows, numbers=numeric, folded=True)


def _position_series(run: ShownRun) -> list[Series]:
    """The losses by position, a line for each range of positions that `_position_table` has a column for."""
    events = run.log.of(Evaluated)
    series = []
    for first in _first_positions(events):
        pick = _picks(str(first), lambda event: event.loss_by_position)
        series += run.event_series(f"from {first:,}", events, pick, measured_on=lambda event: event.fingerprint)
    return series


def _first_positions(events: list[Evaluated]) -> list[int]:
    """The first position of each range."""
    return sorted({int(first) for event in events for first in event.loss_by_position})


def _position_table(run: ShownRun) -> PageTable:
    """The loss by the position of a token in its document: a longer context shows in the last columns."""
    events = [event for event in run.log.of(Evaluated) if event.loss_by_position]
    firsts = _first_positions(events)
    rows = [
        [f"{event.step:,}", _stage_of(event), *_numbers(*(event.loss_by_position.get(str(first)) for first in firsts))]
        for event in events
    ]
    columns = ["step", "stage", *(f"from {first:,}" for first in firsts)]
    title = run.label_of("Validation loss by position in the document")
    numeric = (0, *range(2, len(columns)))
    return long_table(f"positions-{run.number}", title, columns, rows, numbers=numeric, folded=True)


def _stage_of(event: Evaluated) -> str:
    return f"{event.stage}, average" if event.averaged else event.stage


def _numbers(*values: float | None) -> list[str]:
    return ["" if value is None else f"{value:.4f}" for value in values]


def _score_table(run: ShownRun) -> PageTable:
    rows = [
        [
            f"{event.step:,}",
            f"{name}, average" if event.averaged else name,
            f"{score['right']:,} of {score['questions']:,}",
        ]
        + [f"{figure:.3f}" for figure in (score["score"], score["chance"], score["centred"])]
        for event in run.log.of(Scored)
        for name, score in event.scores.items()
    ]
    columns = ["step", "task", "right", "score", "chance", "centred"]
    title = run.label_of("All scores")
    return long_table(f"score-table-{run.number}", title, columns, rows, numbers=(0, 2, 3, 4, 5), folded=True)

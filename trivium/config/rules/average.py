"""Rules about averages: each is one that can be kept, and what asks for one has one."""

from collections.abc import Iterator, Sequence

from trivium.config.keys import Path, listed
from trivium.config.rules.view import Finding, View
from trivium.config.stages import Average, Stage

KINDS = 'average = { ema = 0.999 } or average = { last = 12, every = "5B" }'


def kept_averages(stages: Sequence[Stage]) -> list[Average | None]:
    """The average that each stage keeps: a stage that says nothing goes on with the one of the stage before."""
    kept: list[Average | None] = []
    for stage in stages:
        before = kept[-1] if kept else None
        kept.append(None if stage.end_average else stage.average or before)
    return kept


def average_rules(view: View) -> Iterator[Finding]:
    """An average is of one kind; a stage that starts from one, or ends one, and an evaluation of one, have one."""
    for number, stage in enumerate(view.stages):
        if stage.average is not None:
            yield from _kind_rules(view, view.stage_path(number, "average"), stage.average)
    kept = kept_averages(view.stages)
    for number, stage in enumerate(view.stages):
        before = kept[number - 1] if number else None
        path = ("stages", number)
        if stage.average is not None and stage.end_average:
            yield view.problem(path, "has average and end_average, but needs one of them at most. Keep one.")
        elif stage.end_average and before is None and not any(view.unsound(each, "average") for each in range(number)):
            what = "is true, but no stage before it keeps an average. Leave it out."
            yield view.problem((*path, "end_average"), what)
        if stage.start_from is not None:
            yield from _start_rules(view, number, stage, before)
        yield from _reference_rules(view, number, stage)
    lacks = not any(kept) and not any(view.stage_given(number, "average") for number in range(len(view.stages)))
    if view.config.evaluate.weights is not None and lacks:
        what = f'is "{view.config.evaluate.weights}", but no stage keeps an average. Write {KINDS} in a stage.'
        yield view.problem(("evaluate", "weights"), what)


def _kind_rules(view: View, path: Path, average: Average) -> Iterator[Finding]:
    kinds = [key for key in ("ema", "last") if view.given(*path, key)]
    if len(kinds) != 1:
        has = f"has {listed(kinds)}" if kinds else "has neither ema nor last"
        yield view.problem(path, f"{has}, but needs exactly one of them. Write {KINDS}.")
        return
    if kinds == ["last"] and view.absent(*path, "every"):
        yield view.problem((*path, "every"), 'is missing: last needs it. Write every = "5B" or { steps = 1000 }.')
    for key in ("every", "weights"):
        if kinds == ["ema"] and view.given(*path, key):
            yield view.problem((*path, key), "is given with ema, which follows every update. Leave it out.")
    every = average.every
    if every is not None and (every.tokens is None) == (every.steps is None):
        has = "is empty" if every.tokens is None else "has both"
        what = f'{has}, but needs exactly one of tokens and steps. Write every = "5B" or {{ steps = 1000 }}.'
        yield view.problem((*path, "every"), what)


def _start_rules(view: View, number: int, stage: Stage, before: Average | None) -> Iterator[Finding]:
    path = ("stages", number, "start_from")
    if number == 0:
        what = (
            "there is no stage before this one. Leave it out. To begin with a run's average, export it (trivium export"
        )
        yield view.problem(path, f"{what} --weights average) and give that folder as model.init.")
    elif before is None and not any(view.unsound(each, "average") for each in range(number)):
        what = f"the stage before keeps no average. Write {KINDS} in it, or leave this out."
        yield view.problem(path, what)


def _reference_rules(view: View, number: int, stage: Stage) -> Iterator[Finding]:
    """A reference is the checkpoint of a stage's first step, whose weights are those from before the average."""
    if stage.kl is None or (stage.kl.reference is not None and stage.kl.reference.path is not None):
        return
    origin = stage.name if stage.kl.reference is None else stage.kl.reference.stage
    starts = [each for each in view.stages if each.name == origin and each.start_from is not None]
    if starts:
        what = f"would be measured to the weights from before {origin} starts from the average. Leave one of them out,"
        what = f'{what} or write reference = {{ path = "runs/base" }}.'
        yield view.problem(view.stage_path(number, "kl"), what)

"""Rules about stages that end on a figure: one figure with its bound, which is measured while the stage goes on."""

from collections.abc import Iterator

from trivium.config.keys import Path, listed, nearest
from trivium.config.problems import show_value
from trivium.config.rules.view import Finding, View, one_way
from trivium.config.schema import Config
from trivium.config.stages import EVERYTHING, Longest, Until

BOUNDS = {"score": ("at_least", "0.95"), "validation": ("below", "1.2")}
EXAMPLE = '{ validation = "web", below = 2.5 } or { score = "needle", at_least = 0.95 }'
CADENCES = {"score": ("tasks_every", "1000"), "validation": ("every", "500")}


def until_rules(view: View) -> Iterator[Finding]:
    """A figure that is known and measured, its own bound, and a longest length in one unit."""
    for number, stage in enumerate(view.stages):
        path = ("stages", number, "until")
        if not view.given(*path) or view.unsound(number, "until"):
            continue
        until = stage.until or Until()
        yield from one_way(view, (*path, "at_most"), ("tokens", "steps"))
        if until.at_most == Longest():
            yield view.problem((*path, "at_most"), 'is empty. Write at_most = "100B" or { steps = 4000 }.')
        named = [key for key in BOUNDS if view.given(*path, key)]
        if len(named) != 1:
            has = f"has {listed(named)}, but needs exactly one of them" if named else "names no figure"
            yield view.problem(path, f"{has}. Write {EXAMPLE}.")
            continue
        yield from _bound_rules(view, path, named[0])
        yield from _score_rules(view, path, until) if named == ["score"] else _validation_rules(view, path, until)
        cadence, example = CADENCES[named[0]]
        if view.absent("evaluate", cadence):
            what = f"its figure is not measured while the stage goes on. Write evaluate.{cadence} = {example}."
            yield view.problem(path, what)
    yield from _anneal_rules(view)


def _bound_rules(view: View, path: Path, figure: str) -> Iterator[Finding]:
    """A score ends a stage from a bound on, a loss below one."""
    bound, example = BOUNDS[figure]
    if view.absent(*path, bound):
        yield view.problem(path, f"has {figure} without {bound}. Write {bound} = {example}.")
    for other in (each for each, _ in BOUNDS.values() if each != bound and view.given(*path, each)):
        yield view.problem((*path, other), f"is not a bound of {figure}, which has {bound}. Leave it out.")


def _score_rules(view: View, path: Path, until: Until) -> Iterator[Finding]:
    if until.score is None:
        return
    names = [task.name for task in view.config.evaluate.tasks if task.task is not None]
    found = asked_scores(view.config, until.score)
    if len(found) > 1:
        what = f"{show_value(until.score)} has several scores. Write one of {listed([*map(show_value, found)], 'or')}."
        yield view.problem((*path, "score"), what)
    elif not found and not names and not view.given("evaluate", "tasks"):
        what = f"{show_value(until.score)} is not scored. Write evaluate.tasks = [{show_value(until.score)}] too."
        yield view.problem((*path, "score"), what)
    elif not found:
        what = f"{show_value(until.score)} is not a task of evaluate.tasks. {nearest(until.score, names)}"
        yield view.problem((*path, "score"), what)


def asked_scores(config: Config, name: str) -> list[str]:
    """The scores that a name may mean: the one with this name, else all of the task."""
    names = [task.name for task in config.evaluate.tasks]
    if name in names:
        return [name]
    return [task.name for task in config.evaluate.tasks if task.task == name]


def _validation_rules(view: View, path: Path, until: Until) -> Iterator[Finding]:
    name = until.validation
    if name is None or (name == EVERYTHING and not view.given("sources", EVERYTHING)):
        return
    evaluated = evaluated_sources(view.config)
    if view.unknown_source(name):
        choices = [*evaluated, EVERYTHING]
        what = f"there is no source {show_value(name)}. {nearest(name, choices)}"
        yield view.problem((*path, "validation"), what)
    elif name not in evaluated and name in view.config.sources:
        holds_out = view.config.sources[name].holds_out
        fix = "Name it in evaluate too" if holds_out else f"Write sources.{name}.validation = 0.01"
        what = f"{show_value(name)} is not evaluated. {fix}, or name one that is."
        yield view.problem((*path, "validation"), what)


def evaluated_sources(config: Config) -> list[str]:
    """The sources that evaluations read: those named, or all that hold documents out."""
    evaluate = config.evaluate
    if evaluate.mixture is not None:
        return [name for name, share in evaluate.mixture.items() if share > 0]
    if evaluate.sources is not None:
        return list(evaluate.sources)
    return [name for name, source in config.sources.items() if source.holds_out]


def _anneal_rules(view: View) -> Iterator[Finding]:
    """A fraction of a run's steps is a place only where their number is known."""
    named = [stage.name for stage in view.stages if stage.until is not None]
    if view.given("run", "anneal") and named:
        what = f"starts at a fraction of the run's steps, and the stage {named[0]} may end before its last (until)."
        yield view.problem(("run", "anneal"), f"{what} Write the anneal as a stage of its own.")

"""Rules about evaluation: what is asked for can be measured."""

from collections.abc import Iterator, Sequence

from trivium.config.keys import Path, nearest
from trivium.config.problems import show_value
from trivium.config.rules.shares import names_rules, shares_rules
from trivium.config.rules.sources import quiz_rules
from trivium.config.rules.view import Finding, View
from trivium.config.schema import AskedTask, Config
from trivium.config.sources import (
    SCORED,
    TASKS,
    base_of,
)
from trivium.config.stages import Stage


def evaluate_rules(view: View) -> Iterator[Finding]:
    """Validation reads sources that exist, named in one way."""
    evaluate = view.config.evaluate
    if view.given("evaluate", "sources") and view.given("evaluate", "mixture"):
        yield view.problem(("evaluate",), "has sources and mixture, but needs one of them at most. Keep one.")
    if evaluate.sources is not None:
        yield from names_rules(view, ("evaluate", "sources"), evaluate.sources)
    if evaluate.mixture is not None:
        yield from shares_rules(view, ("evaluate", "mixture"), evaluate.mixture)
    allowed = view.config.model.max_seq_len
    if allowed is not None and evaluate.seq_len is not None:
        allowed = max([allowed, *(stage.seq_len for stage in view.stages)])  # positions may be stretched beyond it
        if evaluate.seq_len > allowed:
            what = f"is {evaluate.seq_len:,}, over the {allowed:,} that the model allows. Lower it, or raise"
            yield view.problem(("evaluate", "seq_len"), f"{what} model.max_seq_len.")
    for path, what in impossible_evaluations(view.config, view.stages):
        refused = f"{what} trivium train refuses this, unless your own Trainer has an evaluator."
        yield view.warning(view.stage_path(int(path[1]), "evaluate") if path[0] == "stages" else path, refused)
    for path, what in unscored_tasks(view.config, view.stages):
        yield view.warning(path, f"{what} trivium train refuses this.")
    yield from _asked_rules(view)


def impossible_evaluations(config: Config, stages: Sequence[Stage]) -> Iterator[tuple[Path, str]]:
    """Evaluations that are asked for where nothing is held out, by key: a Trainer without an evaluator refuses them."""
    evaluate = config.evaluate
    named = evaluate.sources if evaluate.sources is not None else evaluate.mixture
    names = config.sources if named is None else named
    if any(source is not None and source.holds_out for source in (base_of(config.sources, name) for name in names)):
        return
    what = "no source holds documents out to evaluate on. Write validation = 0.01 in a source, or add one with"
    what = f"{what} validation_only = true."
    if evaluate.every is not None:
        yield ("evaluate", "every"), what
    if evaluate.at_start:
        yield ("evaluate", "at_start"), what
    for number, stage in enumerate(stages):
        if stage.evaluate and not evaluate.tasks:
            yield ("stages", number, "evaluate"), what


def unscored_tasks(config: Config, stages: Sequence[Stage]) -> Iterator[tuple[Path, str]]:
    """Tasks that are never scored, by key: every Trainer refuses them."""
    evaluate = config.evaluate
    if evaluate.tasks and evaluate.tasks_every is None and not any(stage.evaluate for stage in stages):
        what = "are never scored. Write evaluate.tasks_every = 1000, or evaluate = true in a stage, or leave them out."
        yield ("evaluate", "tasks"), what


def _asked_rules(view: View) -> Iterator[Finding]:
    """Tasks that are scored have right answers, and scores that can be told apart."""
    names = [asked.name for asked in view.config.evaluate.tasks]
    for number, asked in enumerate(view.config.evaluate.tasks):
        path = ("evaluate", "tasks", number)
        if asked.task is None:
            yield view.problem(path, 'has no task. Write task = "spelling".')
        elif asked.task not in SCORED:
            reason = "has no right answers" if asked.task in TASKS else "is not known"
            yield view.problem(path, f"{show_value(asked.task)} {reason}. {nearest(asked.task, SCORED)}")
        elif asked.name in names[:number]:
            yield view.problem(path, f"{show_value(asked.name)} is there already. Name it once.")
        else:
            yield from _needle_rules(view, path, asked)
            yield from quiz_rules(view, path, asked)
    for key in ("tasks_every", "questions"):
        if view.given("evaluate", key) and view.absent("evaluate", "tasks"):
            what = 'is given without tasks. Write tasks = ["spelling"] too, or leave it out.'
            yield view.problem(("evaluate", key), what)
    has_texts = view.given("evaluate", "tasks") or view.given("evaluate", "prompts")
    if view.given("evaluate", "max_new_tokens") and not has_texts:
        what = "is given without tasks or prompts. Write one of them too, or leave it out."
        yield view.problem(("evaluate", "max_new_tokens"), what)


def _needle_rules(view: View, path: Path, asked: AskedTask) -> Iterator[Finding]:
    """A needle is in a text of a given length; other tasks have none."""
    if asked.task == "needle" and asked.tokens is None and not view.given(*path, "tokens"):
        yield view.problem(path, 'needs the length of its text. Write { task = "needle", tokens = "4Ki" }.')
    longest = max([view.config.model.max_seq_len or 0, *(stage.seq_len for stage in view.stages)])
    if asked.tokens is not None and asked.tokens > longest > 0 and view.absent("model", "init"):
        what = f"is {asked.tokens:,}, and the longest rows have {longest:,}. Lower it, or lengthen a stage's rows."
        yield view.problem((*path, "tokens"), what)
    if asked.task != "needle" and view.given(*path, "tokens"):
        yield view.problem((*path, "tokens"), 'needs task = "needle". Write that too, or leave it out.')

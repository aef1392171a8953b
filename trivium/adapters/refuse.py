"""What a plan asks for and another loop cannot do -> one error, before the first batch, with all problems.

An adapter names what its loop can do beside reading batches. Everything else that would change the model is refused:
KL, distillation, averages, frozen parts and the like belong to trivium's own Trainer. What only watches or keeps a run
(`[evaluate]`, `[checkpoint]`, `[track]`, `[guard]`), the optimizer and how ranks share a model (`[engine]`) are the
other loop's own.
"""

from collections.abc import Callable, Collection, Iterator
from itertools import pairwise

from trivium.config.sources import StreamSource
from trivium.errors import PlanError, Problem, UsageError
from trivium.plan.plan import Plan
from trivium.plan.stage import PlannedStage

# What a stage asks for by itself, and the reason why a loop that does not know of it cannot do it.
ASKED: dict[str, tuple[Callable[[PlannedStage], bool], str]] = {
    "kl": (lambda stage: stage.config.kl is not None, "has no frozen reference to compare the model with"),
    "distill": (lambda stage: stage.config.distill is not None, "has no teacher"),
    "loss": (lambda stage: stage.config.loss is not None, "computes its own loss"),
    "z_loss": (lambda stage: stage.config.z_loss is not None, "computes its own loss"),
    "loss_weight": (
        lambda stage: not {0.0, 1.0}.issuperset((stage.config.loss_weight or {}).values()),
        "weighs all tokens alike (weights of 0 and 1 are possible)",
    ),
    "freeze": (lambda stage: bool(stage.freeze), "updates all parameters"),
    "reset_optimizer": (lambda stage: stage.config.reset_optimizer, "keeps its optimizer's state"),
    "average": (lambda stage: stage.average is not None, "keeps no average of the weights"),
    "start_from": (lambda stage: stage.config.start_from is not None, "keeps no average of the weights"),
    "optimizer": (lambda stage: stage.config.optimizer is not None, "has one optimizer for all stages"),
    "until": (lambda stage: stage.may_end_early, "does not measure the figure on which the stage ends"),
    "engine": (lambda stage: bool(stage.config.engine.model_fields_set), "runs on an engine of its own"),
}
# What differs from one stage to the next.
CHANGED: dict[str, tuple[Callable[[PlannedStage], object], str]] = {
    "vocab": (lambda stage: stage.vocab, "cannot add rows to the embedding"),
    "rope": (lambda stage: stage.rope, "cannot change rotary positions"),
    "seq_len": (lambda stage: stage.seq_len, "has one row length for all stages"),
    "batch_size": (lambda stage: stage.batches, "has one batch size for all stages"),
    "document_mask": (lambda stage: stage.config.document_mask, "has one attention mask for all stages"),
}
EVERY_LOOP = frozenset(("seq_len", "batch_size", "document_mask", "streams"))  # unless one says that it cannot
PARTS = frozenset((*ASKED, *CHANGED, *EVERY_LOOP, "lr"))


def refuse(plan: Plan, loop: str, can: Collection[str] = (), cannot: Collection[str] = ()) -> None:
    """Raise PlanError with every part of a plan that a loop cannot do; the message calls the loop by its name.

    `can` are the parts that the loop does beside those of every loop, `cannot` those of every loop that it does not.
    """
    if unknown := {*can, *cannot} - PARTS:
        raise UsageError(f"can: a plan has no part {sorted(unknown)}. Write some of {', '.join(sorted(PARTS))}.")
    able = (EVERY_LOOP | frozenset(can)) - frozenset(cannot)
    problems = [*_asked(plan, loop, able), *_changed(plan, loop, able), *_by_group(plan, loop, able)]
    if "streams" not in able:
        problems += _streams(plan, loop)
    if problems:
        raise PlanError(sorted(problems, key=lambda problem: problem.where))


def _asked(plan: Plan, loop: str, able: Collection[str]) -> Iterator[Problem]:
    for stage in plan.stages:
        for part, (asks, why) in ASKED.items():
            if part not in able and asks(stage):
                yield _problem(stage, part, loop, why)


def _changed(plan: Plan, loop: str, able: Collection[str]) -> Iterator[Problem]:
    for before, stage in pairwise(plan.stages):
        for part, (value, why) in CHANGED.items():
            if part not in able and value(before) != value(stage):
                yield _problem(stage, part, loop, why)


def refuse_micro_batches(plan: Plan, count: int, world_size: int, key: str) -> None:
    """Every step must have a row for each of a loop's micro-batches; `key` is how the loop calls their number."""
    problems = []
    for stage in plan.stages:
        fewest = min(piece.size for piece in stage.batch_pieces)
        if fewest < count * world_size:
            most = fewest // world_size
            what = f"is {fewest:,} rows, which {count:,} micro-batches on {world_size:,} ranks cannot share."
            fix = f"Write {key} = {most:,} or less." if most else f"Use at most {fewest:,} ranks."
            problems.append(Problem(f"stages[{stage.index}].batch_size", f"{what} {fix}"))
    if problems:
        raise PlanError(problems)


def _by_group(plan: Plan, loop: str, able: Collection[str]) -> Iterator[Problem]:
    if "lr" in able:
        return
    if len(set(plan.peak_lr.values())) > 1:
        what = f"{loop} has one learning rate for all parameters. Write one number, or train with `trivium train`."
        yield Problem("optimizer.lr", what)
    for stage in plan.stages:
        lr = stage.config.lr
        if lr is not None and lr.scale.model_fields_set - {"rest"}:
            yield _problem(stage, "lr", loop, "multiplies the learning rates of all parameters alike")


def _problem(stage: PlannedStage, part: str, loop: str, why: str) -> Problem:
    return Problem(f"stages[{stage.index}].{part}", f"{loop} {why}. Take it out, or train with `trivium train`.")


def _streams(plan: Plan, loop: str) -> Iterator[Problem]:
    for name, source in sorted(plan.config.sources.items()):
        if isinstance(source, StreamSource):
            what = f"{loop} asks for steps by number, and a stream is read in order. Prepare it as text first."
            yield Problem(f"sources.{name}", what)

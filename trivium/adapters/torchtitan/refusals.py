"""A plan -> what of it torchtitan cannot do, each key in words; all are found before anything is trained."""

from collections.abc import Iterator

from trivium.adapters.refuse import refuse
from trivium.errors import PlanError, Problem
from trivium.plan.plan import CompletePlan
from trivium.plan.stage import CompleteStage

OURS = "Take it out, or train with `trivium train`."
# What its trainer does of a plan, beside reading batches; of optimizers, engines and rates more is looked at below.
CAN = ("reset_optimizer", "optimizer", "rope", "lr", "engine")
ENGINE_KEYS = {
    "recompute": "--activation-checkpoint",
    "context": "--parallelism.context-parallel-degree",
    "precision": "--training.mixed-precision-param",
}
TABLE_KEYS = {
    ("guard", "skip_spikes"): "torchtitan's loop skips no update",
    ("guard", "skip_steps"): "torchtitan's loop skips no step",
    ("evaluate", "tasks"): "torchtitan's validator asks no questions",
    ("evaluate", "prompts"): "torchtitan's validator samples no text",
    ("evaluate", "weights"): "torchtitan keeps no average of the weights",
    ("model", "init"): "torchtitan loads weights itself, by --checkpoint.initial-load-path",
}
OPTIMIZERS = ("adamw",)


def refused(plan: CompletePlan) -> Iterator[Problem]:
    """Everything that the config asks for and torchtitan's trainer does not do."""
    config = plan.config
    for (table, key), why in TABLE_KEYS.items():
        if getattr(getattr(config, table), key):
            yield Problem(f"{table}.{key}", f"is given, but {why}. {OURS}")
    if "optimizer" in config.model_fields_set:
        yield from _refused_optimizer(plan)
    else:
        yield from _without_optimizer(plan)
    try:
        refuse(plan, "torchtitan", CAN)
    except PlanError as error:
        yield from error.problems
    for stage in plan.stages:
        yield from _refused_of_stage(stage)


def _refused_of_stage(stage: CompleteStage) -> Iterator[Problem]:
    where = f"stages[{stage.index}]"
    for key, option in ENGINE_KEYS.items():
        if getattr(stage.config.engine, key) is not None:
            what = f"is given, but torchtitan has one for the whole launch. Leave it out, and write {option}."
            yield Problem(f"{where}.engine.{key}", what)
    rope = stage.config.rope
    for key in ("drop_layers", "sliding"):
        if rope is not None and getattr(rope, key) is not None:
            what = f"is given, but torchtitan's layers have one kind of rotary positions. {OURS}"
            yield Problem(f"{where}.rope.{key}", what)


def _refused_optimizer(plan: CompletePlan) -> Iterator[Problem]:
    """Ours is made of torchtitan's AdamW; any other of torchtitan's is written in its own config."""
    said = "Leave [optimizer] out, and torchtitan's own config decides it"
    for index, optimizer in enumerate(plan.optimizers):
        own = plan.stages[index].config.optimizer
        written = set() if own is None else own.model_fields_set
        where = "optimizer" if index == 0 and not written else f"stages[{index}].optimizer"
        if index and not written:
            continue
        settings = optimizer.settings
        if settings.name not in OPTIMIZERS:
            yield Problem(f"{where}.name", f'is "{settings.name}", and stages drive torchtitan\'s AdamW alone. {said}.')
        if settings.skip is not None:
            yield Problem(f"{where}.skip", f"is given, but torchtitan's loop skips no update. {OURS}")


def _without_optimizer(plan: CompletePlan) -> Iterator[Problem]:
    """Without `[optimizer]` the optimizer is torchtitan's: a stage changes its rate as a whole, and nothing else."""
    said = "Write [optimizer] too: it takes the place of torchtitan's"
    for stage in plan.stages:
        where = f"stages[{stage.index}]"
        if stage.config.optimizer is not None:
            yield Problem(f"{where}.optimizer", f"changes [optimizer], and there is none. {said}.")
        if stage.config.lr is not None and isinstance(stage.config.lr.scale.as_written(), dict):
            what = f"names groups of parameters, and the optimizer is torchtitan's. {said}, or give one number."
            yield Problem(f"{where}.lr.scale", what)


def not_heeded(plan: CompletePlan) -> list[str]:
    """Tables that only say how trivium's own engine runs: torchtitan's config decides the same."""
    given = plan.config.model_fields_set
    return [table for table in ("engine", "checkpoint", "guard", "track") if table in given]

"""A config, its plan and what a Trainer overrides of them -> the engine of a run, and the weights it starts with."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from math import isfinite
from pathlib import Path
from typing import Any, get_args

from trivium.config.keys import nearest
from trivium.config.optimizer import BUILT_IN, StageOptimizer
from trivium.config.schema import Config
from trivium.config.stages import MOST_ROWS
from trivium.engine.base import (
    Engine,
    EngineSettings,
    MakeModel,
    OptimizerSettings,
    OwnOptimizer,
    StageSettings,
    StepSettings,
    TokenLosses,
    Transformation,
)
from trivium.engine.make import make_engine
from trivium.engine.mesh import ONE_RANK, MeshShape
from trivium.engine.own import name_of, source_hash
from trivium.engine.packaged import is_packaged
from trivium.engine.ranks import Ranks
from trivium.errors import UsageError
from trivium.plan.plan import CompletePlan, Plan
from trivium.plan.settings import engine_settings, optimizer_settings
from trivium.run.decisions import BatchResized, Decision, run_decisions, run_places
from trivium.run.folder import COMPLETE, Checkpoint, weights_folder
from trivium.text.tokenizer import open_tokenizer

GivenOptimizer = str | OptimizerSettings | OwnOptimizer | None
GivenSchedule = str | Callable[[int], Any] | None
HIGH_LR = 0.1  # from here on a multiplier may be as small as a rate
SCHEDULE_LOOKS = 100  # steps of a run at which an own schedule is looked at beforehand
KINDS = {  # what each method may return, in words
    "optimizer": "a name, OptimizerSettings, a torch.optim.Optimizer class, an optax transformation, a function",
    "schedule": "a shape's name, a function of the step",
    "model": "a function of the ModelSpec",
    "loss": "a function of hidden states, lm_head and batch",
}


@dataclass(frozen=True, slots=True)
class Own:
    """What a Trainer's methods return in place of the config's; None is the config's."""

    optimizer: GivenOptimizer = None
    schedule: GivenSchedule = None
    model: MakeModel | None = None
    loss: TokenLosses | None = None

    def __post_init__(self) -> None:
        for method, usable in (
            ("optimizer", (str, OptimizerSettings, Transformation)),
            ("schedule", (str,)),
            ("model", ()),
            ("loss", ()),
        ):
            returned = getattr(self, method)
            is_usable = isinstance(returned, usable) or callable(returned)
            if method == "schedule":  # a class, such as a torch scheduler, gives no multiplier
                is_usable &= not isinstance(returned.func if isinstance(returned, partial) else returned, type)
            if returned is not None and not is_usable:
                raise UsageError(f"Trainer.{method}() returned {returned!r}. Return {KINDS[method]} or None.")

    def refuse_two_ways(self, config: Config) -> None:
        """A model and a loss are the config's or a method's, not both's."""
        stages = (*config.stages, config.defaults)
        for method, key, is_named in (
            ("model", "model.family", config.model.family is not None),
            ("loss", "a stage's loss", any(stage.loss is not None for stage in stages)),
        ):
            if is_named and getattr(self, method) is not None:
                what = f"Trainer.{method}() returned a function, and the config has {key}"
                raise UsageError(f"{what}. Keep one of them.")

    def configured(self, config: Config) -> Config:
        """The config with an optimizer and a schedule that are given by name."""
        if isinstance(self.optimizer, str):
            config = _with_name(config, "optimizer", "name", self.optimizer)
        return _with_shape(config, self.schedule) if isinstance(self.schedule, str) else config

    def record(self) -> dict[str, Any]:
        """For the plan's record: settings by key, other objects by name and hash; names are in the config."""
        entries: dict[str, Any] = {}
        for method in KINDS:
            own = getattr(self, method)
            if isinstance(own, OptimizerSettings):
                entries |= {f"Trainer.{method}.{key}": value for key, value in asdict(own).items()}
            elif own is not None and not isinstance(own, str):
                entries |= {f"Trainer.{method}": name_of(own), f"Trainer.{method}.source": source_hash(own)}
        return entries

    def applied(self, settings: EngineSettings) -> EngineSettings:
        """An engine's settings with what is not the config's."""
        settings = replace(settings, make_model=self.model or settings.make_model, token_losses=self.loss)
        if isinstance(self.optimizer, OptimizerSettings):
            return replace(settings, optimizer=self.optimizer)
        return settings if isinstance(self.optimizer, str) else replace(settings, own_optimizer=self.optimizer)

    @property
    def makes_optimizer(self) -> bool:
        """Whether the optimizer is no longer the config's."""
        return self.optimizer is not None and not isinstance(self.optimizer, str)

    def optimizer_of(self, optimizer: StageOptimizer) -> OptimizerSettings | None:
        """What an engine is given of a stage's optimizer; None where the engine's own settings count."""
        if isinstance(self.optimizer, OptimizerSettings):
            return None
        return optimizer_settings(optimizer.settings)

    def entered(self, settings: StageSettings) -> StageSettings:
        """A stage's settings with the optimizer that is not the config's."""
        return replace(settings, optimizer=None) if isinstance(self.optimizer, OptimizerSettings) else settings

    def refuse_stage_optimizers(self, plan: CompletePlan) -> None:
        """A stage cannot change what a method of the Trainer makes."""
        if not self.makes_optimizer:
            return
        changeable = {"skip"} if isinstance(self.optimizer, OptimizerSettings) else {"skip", "grad_clip"}
        for stage in plan.stages:
            own = stage.config.optimizer
            keys = sorted(set() if own is None else own.model_fields_set - changeable)
            if keys:
                what = f"stages[{stage.index}].optimizer has {', '.join(keys)}, but Trainer.optimizer() makes it"
                raise UsageError(f"{what}. Leave {'it' if len(keys) == 1 else 'them'} out, or return None or a name.")

    def settings_at(self, plan: CompletePlan, step: int) -> StepSettings:
        """The plan's settings of a step, with the learning rates of an own schedule, which may give any array."""
        now = plan.settings_at(step)
        if self.schedule is None or isinstance(self.schedule, str):
            return now
        found = self.schedule(step)
        try:
            multiplier = float(found)
        except (TypeError, ValueError, RuntimeError):
            multiplier = float("nan")
        if not isfinite(multiplier):
            raise UsageError(f"the function of Trainer.schedule() returned {found!r} at step {step:,}, not a number.")
        if multiplier < 0:
            what = f"the function of Trainer.schedule() returned {multiplier:g} at step {step:,}"
            raise UsageError(f"{what}. It multiplies the learning rate: return 0 or more.")
        rates = {group: multiplier * peak for group, peak in plan.peak_lr_of(plan.stage_at(step)).items()}
        return replace(now, lr_multiplier=multiplier, lr=rates)

    def refuse_groups(self, plan: CompletePlan) -> None:
        """An optimizer of the user's own has groups of its own, which no stage scales one by one."""
        built_in = self.optimizer is None or isinstance(self.optimizer, str | OptimizerSettings)
        if plan.group_learning_rates and not built_in:
            what = "Trainer.optimizer() returned an optimizer with groups of its own, and a stage's lr.scale names ours"
            raise UsageError(f"{what}. Write one number for all: lr = {{ scale = 0.5 }}.")

    def refuse_rates(self, plan: CompletePlan) -> None:
        """A schedule that gives learning rates, as optax's do, would be multiplied by the learning rate once more."""
        peak = max(plan.peak_lr.values())
        if self.schedule is None or isinstance(self.schedule, str) or peak >= HIGH_LR:
            return
        steps = range(0, plan.total_steps, max(1, plan.total_steps // SCHEDULE_LOOKS))
        highest = max(self.settings_at(plan, step).lr_multiplier for step in steps)
        if 0 < highest <= 10 * peak:
            what = f"the function of Trainer.schedule() gives {highest:g} at most, where optimizer.lr is {peak:g}"
            instead = "return 1 at its peak, or set optimizer.lr = 1.0 and return rates"
            raise UsageError(f"{what}. It multiplies the learning rate: {instead}.")


def _with_shape(config: Config, shape: str) -> Config:
    """The config with a schedule of another shape, without what only the config's own has."""
    config = _with_name(config, "schedule", "shape", shape)
    for named, key in (("power", "exponent"), ("exponential", "half_life")):
        if shape == named and getattr(config.schedule, key) is None:
            what = f'Trainer.schedule() returned "{shape}", which needs {key}'
            raise UsageError(f"{what}. Write the shape and {key} in [schedule], and return None.")
    own = {"points": (), "cycle": None, "extend": None}
    return config.model_copy(update={"schedule": config.schedule.model_copy(update=own)})


def _with_name(config: Config, table: str, key: str, name: str) -> Config:
    """The config with one key of a table set to a name that the schema knows."""
    own = getattr(config, table)
    known = BUILT_IN if table == "optimizer" else get_args(type(own).model_fields[key].annotation)
    if name not in known and not (table == "optimizer" and is_packaged(name)):
        raise UsageError(f'Trainer.{table}() returned "{name}", which is not known. {nearest(name, known)}')
    return config.model_copy(update={table: own.model_copy(update={key: name})})


@dataclass(frozen=True, slots=True)
class Begun:
    """What a run's folders have of it before a launch opens them: the step it resumes at, and what was decided."""

    step: int | None
    decisions: tuple[Decision, ...]

    @classmethod
    def of(cls, config: Config) -> "Begun":
        """Of a config's run; its second place is looked into where its own folder has no checkpoint."""
        places = run_places(config)
        steps = (place.last_step() for place in places)
        return cls(next((step for step in steps if step is not None), None), run_decisions(*places))

    def resized(self, plan: Plan, size: int) -> BatchResized | None:
        """The decision that steps have another size from here to the stage's end; None where they have it already."""
        if self.step is None:
            instead = f"Write it in the config, or as stages.{plan.stages[0].name}.batch_size={size}."
            raise UsageError(f"--batch-size: changes a run that resumes, and this one has no checkpoint. {instead}")
        if not 1 <= size <= MOST_ROWS:
            raise UsageError(f"--batch-size: is {size:,}. Give 1 to {MOST_ROWS:,} rows.")
        if self.step >= plan.known_steps:
            raise UsageError(f"--batch-size: all {plan.known_steps:,} steps of the run are taken. Leave it out.")
        stage = plan.stage_at(self.step)
        assert stage.start is not None, "it has a step"
        within = [piece for piece in stage.batches.since(self.step - stage.start) if piece.step < (stage.steps or 0)]
        return None if {piece.size for piece in within} == {size} else BatchResized(step=self.step, size=size)


def run_engine(plan: CompletePlan, own: Own, mesh: MeshShape = ONE_RANK) -> Engine:
    """The engine of a run; its weights have no values yet."""
    tokenizer = open_tokenizer(plan.config.tokenizer)
    token_bytes = None if tokenizer is None else tokenizer.token_bytes(plan.largest_vocab)
    settings = replace(engine_settings(plan.config, plan.model, token_bytes), mesh=mesh, draw=False)
    return make_engine(own.applied(settings), plan.config.engine.name)


def init_folder(config: Config, ranks: Ranks) -> Path | None:
    """The folder of weights that `model.init` names: a Hugging Face one, or a checkpoint's engine part.

    Files of a checkpoint must be as they were written; each rank reads its part of them.
    """
    if config.model.init is None:
        return None
    folder = weights_folder(Path(config.model.init), config.model.init_step)
    if (folder.parent / COMPLETE).is_file():
        Checkpoint(0, folder.parent).refuse_damaged(ranks.rank, ranks.size)
    return folder

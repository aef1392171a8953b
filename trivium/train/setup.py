"""A config, its plan and what a Trainer overrides of them -> the engine of a run, and the weights it starts with."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, get_args

from trivium.config.keys import nearest
from trivium.config.schema import Config
from trivium.engine.base import Engine, OptimizerSettings, OwnOptimizer
from trivium.engine.make import make_engine
from trivium.engine.mesh import ONE_RANK, MeshShape
from trivium.engine.ranks import Ranks
from trivium.errors import UsageError
from trivium.model.huggingface import CONFIG_FILE
from trivium.plan.plan import CompletePlan
from trivium.plan.settings import engine_settings
from trivium.run.folder import COMPLETE, STATE, Checkpoint, find_checkpoint
from trivium.text.tokenizer import open_tokenizer

Optimizer = str | OptimizerSettings | OwnOptimizer | None
Schedule = str | Callable[[int], float] | None


def run_engine(
    plan: CompletePlan, optimizer: OptimizerSettings | OwnOptimizer | None = None, mesh: MeshShape = ONE_RANK
) -> Engine:
    """The engine of a run; its weights are the seed's."""
    tokenizer = open_tokenizer(plan.config.tokenizer)
    token_bytes = None if tokenizer is None else tokenizer.token_bytes(plan.model.vocab)
    settings = replace(engine_settings(plan.config, plan.model, token_bytes), mesh=mesh)
    if isinstance(optimizer, OptimizerSettings):
        settings = replace(settings, optimizer=optimizer)
    elif optimizer is not None:
        settings = replace(settings, own_optimizer=optimizer)
    return make_engine(settings, plan.config.engine.name)


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


def weights_folder(path: Path, step: int | None) -> Path:
    """A Hugging Face folder as it is; of a run or one of its checkpoints the engine's part."""
    return path if (path / CONFIG_FILE).is_file() else find_checkpoint(path, step).engine


def larger_micro_batch(config: Config, init: Path) -> str | None:
    """A warning where the micro-batch is larger than the one the base model was trained with."""
    if not (init.parent / STATE).is_file():
        return None
    base = Checkpoint(0, init.parent).state()["settings"].get("micro_batch_size")
    ours = config.engine.micro_batch_size
    if not base or not ours or ours <= base:
        return None
    return f"the micro-batch of {ours} rows is larger than the base model's, which was {base}"


def configured(config: Config, optimizer: Optimizer, schedule: Schedule) -> Config:
    """The config with an optimizer and a schedule that are given by name; refuses what is neither a name nor usable."""
    if not (optimizer is None or isinstance(optimizer, str | OptimizerSettings) or callable(optimizer)):
        raise UsageError(
            f"Trainer.optimizer() returned {optimizer!r}. Return a name, OptimizerSettings, a function or None."
        )
    if not (schedule is None or isinstance(schedule, str) or callable(schedule)):
        raise UsageError(
            f"Trainer.schedule() returned {schedule!r}. Return a shape's name, a function of the step or None."
        )
    if isinstance(optimizer, str):
        config = _with_name(config, "optimizer", "name", optimizer)
    return _with_name(config, "schedule", "shape", schedule) if isinstance(schedule, str) else config


def _with_name(config: Config, table: str, key: str, name: str) -> Config:
    """The config with one key of a table set to a name that the schema knows."""
    own = getattr(config, table)
    known = get_args(type(own).model_fields[key].annotation)
    if name not in known:
        raise UsageError(f'Trainer.{table}() returned "{name}", which is not known. {nearest(name, known)}')
    return config.model_copy(update={table: own.model_copy(update={key: name})})


def own_record(optimizer: Optimizer, schedule: Schedule) -> Mapping[str, Any]:
    """What the plan's record keeps of those that are given as objects: settings by key, functions by their name."""
    entries: dict[str, Any] = {}
    if isinstance(optimizer, OptimizerSettings):
        entries |= {f"Trainer.optimizer.{key}": value for key, value in asdict(optimizer).items()}
    elif callable(optimizer):
        entries["Trainer.optimizer"] = _name(optimizer)
    if callable(schedule):
        entries["Trainer.schedule"] = _name(schedule)
    return entries


def _name(function: Callable[..., Any]) -> str:
    """`WithSgd.optimizer.make`: the same in every launch, whichever module it is run from."""
    name: str = getattr(function, "__qualname__", type(function).__qualname__)
    return name.replace(".<locals>", "")

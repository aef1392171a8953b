"""What a Trainer's `optimizer` and `schedule` give -> the config, or the record, so that a changed one is noticed."""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from trivium.config.schema import Config
from trivium.engine.base import OptimizerSettings, OwnOptimizer

Optimizer = str | OptimizerSettings | OwnOptimizer | None
Schedule = str | Callable[[int], float] | None


def configured(config: Config, optimizer: Optimizer, schedule: Schedule) -> Config:
    """The config with an optimizer and a schedule that are given by name."""
    if isinstance(optimizer, str):
        named = type(config.optimizer).model_validate({**config.optimizer.model_dump(), "name": optimizer})
        config = config.model_copy(update={"optimizer": named})
    if isinstance(schedule, str):
        config = config.model_copy(update={"schedule": config.schedule.model_copy(update={"shape": schedule})})
    return config


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

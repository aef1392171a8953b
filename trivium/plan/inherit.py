"""What a run takes from the one that its weights come from, where its config does not say it.

A midtraining goes on as its base was trained: with its tokenizer, row length, batch size and rotary positions, and
with its optimizer and learning rates where it names no other optimizer. Sources, stages and the schedule are its own.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trivium.config.schema import Config, Tokenizer
from trivium.config.stages import Stage, merged_stages
from trivium.errors import Problem, ResumeError
from trivium.run.folder import find_checkpoint

HUGGING_FACE = "config.json"
TOKENIZER_FILE = "tokenizer.json"


@dataclass(frozen=True, slots=True)
class Inherited:
    """A config with what it took from its base, by key; a problem where it cannot be had."""

    config: Config
    base: str = ""
    taken: Mapping[str, Any] = field(default_factory=dict)
    gap: Problem | None = None  # the base is not there yet
    problem: Problem | None = None


def inherited(config: Config) -> Inherited:
    """The config with what its base run says; as it is where `model.init` names no run."""
    if config.model.init is None:
        return Inherited(config)
    folder = Path(config.model.init)
    if (folder / HUGGING_FACE).is_file():
        return _from_hugging_face(config, folder)
    try:
        checkpoint = find_checkpoint(folder, config.model.init_step)
    except ResumeError as error:
        what = f"{str(error).split('. ')[0]}: what this run takes from it is not known."
        return Inherited(config, gap=Problem("model.init", what))
    state = checkpoint.state()
    base = Config.model_validate(state["config"])
    updates = {**_tokenizer(config, base), **_rows(config, base, last_stage(state)), **_optimizer(config, base)}
    if config.engine.micro_batch_size is None and base.engine.micro_batch_size is not None:
        updates["engine.micro_batch_size"] = base.engine.micro_batch_size
    name = f"{folder} at step {checkpoint.step:,}"
    return Inherited(_with(config, updates), name, updates, problem=_other_optimizer(config, base, name))


def last_stage(state: Mapping[str, Any]) -> Stage | None:
    """The last stage that a checkpoint's run has taken a step of; None where it has taken none."""
    starts = (f"stages[{number}].start" for number in range(state["stage"] + 1))
    # A record holds the stages that have begun, that is, of which a step is taken.
    begun = sum(start in state["loader"]["record"] for start in starts)
    config = Config.model_validate(state["config"])
    stages = merged_stages(config.stages, config.defaults)
    return None if begun == 0 else stages[min(begun, len(stages)) - 1]  # an anneal is a part of the last one


def _from_hugging_face(config: Config, folder: Path) -> Inherited:
    updates: dict[str, Any] = {}
    if config.tokenizer is None and (folder / TOKENIZER_FILE).is_file():
        updates["tokenizer"] = Tokenizer(path=str(folder))
    problem = None
    if config.model.init_optimizer:
        what = f"{folder} is a Hugging Face folder, which has no optimizer state. Leave it out."
        problem = Problem("model.init_optimizer", what)
    return Inherited(_with(config, updates), str(folder), updates, problem=problem)


def _tokenizer(config: Config, base: Config) -> dict[str, Any]:
    return {"tokenizer": base.tokenizer} if config.tokenizer is None and base.tokenizer is not None else {}


def _rows(config: Config, base: Config, stage: Stage | None) -> dict[str, Any]:
    """Row length, rows in a step and rotary positions of the base's last stage, where some stage does not say them."""
    if stage is None:
        return {}
    said = config.defaults.model_fields_set
    lacks_length = any("seq_len" not in each.model_fields_set | said for each in config.stages)
    lacks_size = any(not {"batch_size", "batch_tokens"} & (each.model_fields_set | said) for each in config.stages)
    taken: dict[str, Any] = {"defaults.seq_len": stage.seq_len} if lacks_length else {}
    if lacks_size:
        taken["defaults.batch_size"] = stage.rows_of_step
    rope = base.model.rope if stage.rope is None else stage.rope
    return taken | ({"model.rope": rope} if config.model.rope is None and rope is not None else {})


def _optimizer(config: Config, base: Config) -> dict[str, Any]:
    """Every key that is not given; none where another optimizer is named, whose rates mean something else."""
    ours = config.optimizer.model_fields_set
    if "name" in ours and config.optimizer.name != base.optimizer.name:
        return {}
    return {
        f"optimizer.{key}": getattr(base.optimizer, key)
        for key in type(base.optimizer).model_fields
        if key in base.optimizer.model_fields_set - ours
    }


def _other_optimizer(config: Config, base: Config, name: str) -> Problem | None:
    """Why the base's optimizer state cannot be taken, where it is asked for."""
    if not config.model.init_optimizer:
        return None
    theirs, ours = (base.optimizer.name, base.engine.name), (_optimizer_name(config, base), config.engine.name)
    for was, now, key in zip(theirs, ours, ("optimizer.name", "engine.name"), strict=True):
        if was != now:
            what = f'{name} was trained with {was}, and this run is with {now}. Leave it out, or write {key} = "{was}".'
            return Problem("model.init_optimizer", what)
    return None


def _optimizer_name(config: Config, base: Config) -> str:
    return config.optimizer.name if "name" in config.optimizer.model_fields_set else base.optimizer.name


def _with(config: Config, updates: Mapping[str, Any]) -> Config:
    """The config with some keys set: `tokenizer`, or `optimizer.lr`."""
    for key, value in updates.items():
        table, _, inner = key.partition(".")
        changed = getattr(config, table).model_copy(update={inner: value}) if inner else value
        config = config.model_copy(update={table: changed})
    return config

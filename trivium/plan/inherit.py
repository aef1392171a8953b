"""What a run takes from the one that its weights come from, where its config does not give it.

A midtraining continues as its base was trained: with its family, tokenizer, row length, batch size and rotary
positions, and with its optimizer and learning rates where it names no other optimizer. Sources, stages and the schedule
are its own.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trivium.config.optimizer import stage_optimizers
from trivium.config.schema import Config, Tokenizer
from trivium.config.stages import BatchSize, Stage, merged_stages
from trivium.errors import Problem, ResumeError
from trivium.model.huggingface import CONFIG_FILE
from trivium.run.folder import find_checkpoint

TOKENIZER_FILE = "tokenizer.json"


@dataclass(frozen=True, slots=True)
class Inherited:
    """A config with what it took from its base, by key; a problem where it cannot be had."""

    config: Config
    base: str = ""
    taken: Mapping[str, Any] = field(default_factory=dict)
    weights: Path | None = None  # the folder that the model's weights come from
    gap: Problem | None = None  # the base is not there yet
    problem: Problem | None = None
    warning: Problem | None = None


def inherited(config: Config) -> Inherited:
    """The config with what it takes from its base run; unchanged where `model.init` names no run."""
    if config.model.init is None:
        return Inherited(config)
    folder = Path(config.model.init)
    if (folder / CONFIG_FILE).exists():
        return _from_hugging_face(config, folder)
    try:
        checkpoint = find_checkpoint(folder, config.model.init_step)
    except ResumeError as error:
        what = f"{str(error).split('. ')[0]}: what this run takes from it is not known."
        return Inherited(config, gap=Problem("model.init", what))
    state = checkpoint.state()
    base = Config.model_validate(state["config"])
    updates: dict[str, Any] = {}
    if config.tokenizer is None and base.tokenizer is not None:
        updates["tokenizer"] = base.tokenizer
    if config.model.family is None and base.model.family is not None:
        updates["model.family"] = base.model.family
    updates |= _rows(config, state) | _optimizer(config, base)
    if config.engine.micro_batch_size is None and base.engine.micro_batch_size is not None:
        updates["engine.micro_batch_size"] = base.engine.micro_batch_size
    name = f"{folder} at step {checkpoint.step:,}"
    problem, warning = _other_optimizer(config, base, state, name), _larger_passes(config, base, name)
    return Inherited(_with(config, updates), name, updates, checkpoint.engine, problem=problem, warning=warning)


def begun_stages(state: Mapping[str, Any]) -> tuple[Stage, ...]:
    """The stages of which a checkpoint's run has taken a step."""
    starts = (f"stages[{number}].start" for number in range(state["stage"] + 1))
    # A record holds the stages that have begun; an anneal is a part of the last one.
    begun = sum(start in state["loader"]["record"] for start in starts)
    config = Config.model_validate(state["config"])
    return merged_stages(config.stages, config.defaults)[:begun]


def _from_hugging_face(config: Config, folder: Path) -> Inherited:
    updates: dict[str, Any] = {}
    if config.tokenizer is None and (folder / TOKENIZER_FILE).is_file():
        updates["tokenizer"] = Tokenizer(path=str(folder))
    problem = None
    if config.model.init_optimizer:
        what = f"{folder} is a Hugging Face folder, which has no optimizer state. Leave it out."
        problem = Problem("model.init_optimizer", what)
    return Inherited(_with(config, updates), str(folder), updates, folder, problem=problem)


def _rows(config: Config, state: Mapping[str, Any]) -> dict[str, Any]:
    """Row length and rows in a step of the base's last stage, where some stage does not give them."""
    stages = begun_stages(state)
    if not stages:
        return {}
    given = config.defaults.model_fields_set
    lacks_length = any("seq_len" not in each.model_fields_set | given for each in config.stages)
    lacks_size = any(not {"batch_size", "batch_tokens"} & (each.model_fields_set | given) for each in config.stages)
    taken: dict[str, Any] = {"defaults.seq_len": stages[-1].seq_len} if lacks_length else {}
    return taken | ({"defaults.batch_size": _last_size(state)} if lacks_size else {})


def _last_size(state: Mapping[str, Any]) -> BatchSize:
    """Rows in the last step that a checkpoint's run has taken; its record has each size and the step it began at."""
    recorded = [value for key, value in state["loader"]["record"].items() if key.endswith(".batch_size")][-1]
    return BatchSize(size=recorded[-1][-1] if isinstance(recorded, list) else recorded)


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


def _last_optimizer(state: Mapping[str, Any], base: Config) -> str:
    """The name of the optimizer whose state a checkpoint holds."""
    stages = begun_stages(state)
    return stage_optimizers(base.optimizer, stages)[-1].settings.name if stages else base.optimizer.name


def _other_optimizer(config: Config, base: Config, state: Mapping[str, Any], name: str) -> Problem | None:
    """Why the base's optimizer state cannot be taken, where it is asked for."""
    if not config.model.init_optimizer:
        return None
    own = config.optimizer if "name" in config.optimizer.model_fields_set else base.optimizer
    now = stage_optimizers(own, config.stages[:1])[0].settings.name
    optimizers, engines = (_last_optimizer(state, base), now), (base.engine.name, config.engine.name)
    for key, (was, now) in {"optimizer.name": optimizers, "engine.name": engines}.items():
        if was != now:
            what = f'{name} was trained with {was}, and this run is with {now}. Leave it out, or write {key} = "{was}".'
            return Problem("model.init_optimizer", what)
    return None


def _larger_passes(config: Config, base: Config, name: str) -> Problem | None:
    """A base that was trained in smaller passes may have filled the device's memory with them."""
    ours, theirs = config.engine.micro_batch_size, base.engine.micro_batch_size
    if ours is None or theirs is None or ours <= theirs:
        return None
    what = f"is {ours}, and {name} was trained with {theirs}: it may need more memory than there is."
    return Problem("engine.micro_batch_size", f"{what} Write {theirs} or less, or leave it out.")


def _with(config: Config, updates: Mapping[str, Any]) -> Config:
    """The config with some keys set: `tokenizer`, or `optimizer.lr`."""
    for key, value in updates.items():
        table, _, inner = key.partition(".")
        changed = getattr(config, table).model_copy(update={inner: value}) if inner else value
        config = config.model_copy(update={table: changed})
    return config

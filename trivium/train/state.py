"""A run <-> its own part of a checkpoint: plain values beside what the engine keeps."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from trivium.config.schema import Config
from trivium.model.folder import is_saved
from trivium.run.folder import Checkpoint
from trivium.run.versions import versions
from trivium.train.resume import changed_keys, refuse_other_past

if TYPE_CHECKING:
    from trivium.train.trainer import Trainer


def state_of(trainer: "Trainer") -> dict[str, Any]:
    """What a checkpoint keeps of a run, at the step where it stands."""
    loader = trainer.loader.state_at(trainer.step)
    return {
        "step": trainer.step,
        "stage": loader["stage"],
        "stage_name": loader["stage_name"],
        "loader": loader,
        "sources": {
            name: {"fingerprint": source.fingerprint, "documents": source.documents, "tokens": source.tokens}
            for name, source in trainer.plan.sources.items()
        },
        "config": raw_config(trainer.config),
        "references": trainer.references.found,
        "meter": trainer.meter.state(),
        "guard": trainer.guard.state(),
        "best": trainer.best,
        "best_step": trainer.saver.best_step,
        "validation": None if trainer.last_evaluation is None else trainer.last_evaluation.line(),
        "versions": versions(),
        "world_size": trainer.ranks.size,
        "settings": engine_facts(trainer),
    }


def load_checkpoint(trainer: "Trainer", checkpoint: Checkpoint) -> dict[str, str]:
    """Put a run and its engine where a checkpoint stands; refuses another past. What changed in the config since."""
    state = checkpoint.state()
    refuse_other_past(state, trainer.plan, str(trainer.folder.path))
    step = int(state["step"])
    trainer.loader.seek(step, state["loader"]["lanes"])
    if is_saved(checkpoint.engine):
        trainer.engine.load(checkpoint.engine)
    else:  # a fork from another engine: the weights alone
        trainer.engine.start_from(checkpoint.engine)
    trainer.step = step
    trainer.meter.load_state(state["meter"])
    trainer.guard.load_state(state["guard"])
    trainer.best = dict(state["best"])
    trainer.saver.best_step = state["best_step"]
    trainer.references.found = dict(state.get("references", {}))
    changes = changed_keys(state["config"], raw_config(trainer.config))
    return changes | changed_keys(_layout(state), _layout(trainer.state()))


def engine_facts(trainer: "Trainer") -> dict[str, Any]:
    """What may change the bits, but never the batches."""
    engine = trainer.config.engine
    return {
        "engine": engine.name,
        "device": engine.device,
        "precision": engine.precision,
        "micro_batch": engine.micro_batch,
        "compile": engine.compile,
        "deterministic": engine.deterministic,
        "layout": asdict(trainer.mesh),
    }


def raw_config(config: Config) -> dict[str, Any]:
    """A config as it was given."""
    raw: dict[str, Any] = config.model_dump(mode="json", exclude_none=True, exclude_unset=True)
    return raw


def _layout(state: Mapping[str, Any]) -> dict[str, Any]:
    """What a run's state says of ranks."""
    return {"world_size": state["world_size"], "layout": state["settings"]["layout"]}

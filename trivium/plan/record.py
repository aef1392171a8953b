"""What decided the steps before a given one, key by key, and the fingerprint of it.

Two plans with the same record up to step s took, or would take, exactly the same s steps. Names of stages,
cadences, micro-batches and whatever else decides no step are not in it.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from hashlib import blake2b
from typing import Any

from pydantic import BaseModel

from trivium.config.problems import show_value
from trivium.config.schema import Config
from trivium.data.source import OpenSource
from trivium.plan.curve import Curve
from trivium.plan.stage import PlannedStage

Record = dict[str, Any]

# Of a stage, what decides its steps; the mixture, the seed and the start are entered resolved.
STAGE_KEYS = ("seq_len", "packing", "documents", "rope", "kl", "z_loss", "loss_on", "reset_optimizer")


@dataclass(frozen=True, slots=True)
class Difference:
    """The first key in which two records differ; None where one of them has no such key."""

    key: str
    old: Any
    new: Any

    def __str__(self) -> str:
        return f"{self.key} was {_shown(self.old)} and is now {_shown(self.new)}"


def record(
    config: Config,
    sources: Mapping[str, OpenSource],
    stages: Sequence[PlannedStage],
    learning_rate: Curve | None,
    momentum: Curve,
    step: int,
) -> Record:
    """Everything that decided the steps before `step`, and the model that they began with."""
    entries: Record = {"run.seed": config.run.seed}
    entries |= _flat("model", config.model)
    if step == 0:
        return entries
    entries |= {key: value for key, value in _flat("optimizer", config.optimizer).items() if "momentum" not in key}
    taken = [stage for stage in stages if stage.start is not None and stage.start < step]
    for name in sorted({name for stage in taken for name, given in stage.given.items() if given.rows}):
        entries[f"sources.{name}.fingerprint"] = sources[name].fingerprint if name in sources else None
    for stage in taken:
        entries |= _stage_entries(stage)
    for name, curve in (("learning rate", learning_rate), ("momentum", momentum)):
        if curve is not None and (name == "learning rate" or config.optimizer.name == "muon"):
            for start, formula, ramp in curve.identity(step):
                entries[f"{name} from step {start}"] = [formula, ramp] if ramp else formula
    return entries


def _stage_entries(stage: PlannedStage) -> Record:
    path = f"stages[{stage.index}]"
    entries: Record = {f"{path}.start": stage.start, f"{path}.seed": stage.seed}
    entries[f"{path}.batch_size"] = stage.batch_size
    for key in STAGE_KEYS:
        value = getattr(stage.said, key)
        entries |= _flat(f"{path}.{key}", value) if isinstance(value, BaseModel) else {f"{path}.{key}": value}
    if stage.mixture is not None:
        for name, share in zip(stage.mixture.new.names, stage.mixture.new.shares, strict=True):
            if share:
                entries[f"{path}.mixture.{name}"] = _decimal(share)
        if stage.mixture.fade_rows:
            entries[f"{path}.fade"] = f"{stage.mixture.fade_rows} rows, {stage.mixture.shape}"
    return entries


def _decimal(share: Fraction) -> str:
    """`0.8` where that is exact, else `1/3`."""
    decimal = repr(float(share))
    return decimal if Fraction(decimal) == share else str(share)


def _flat(path: str, table: BaseModel) -> Record:
    entries: Record = {}
    for name in type(table).model_fields:
        value = getattr(table, name)
        if isinstance(value, BaseModel):
            entries |= _flat(f"{path}.{name}", value)
        elif value is not None:
            entries[f"{path}.{name}"] = list(value) if isinstance(value, tuple) else value
    return entries


def fingerprint(entries: Record) -> str:
    """A hash of a record, the same on every machine."""
    text = json.dumps(entries, sort_keys=True, separators=(",", ":"))
    return blake2b(text.encode(), digest_size=16).hexdigest()


def first_difference(old: Record, new: Record) -> Difference | None:
    """The first key that differs, in the order of the old record, then of the new one."""
    plain_old, plain_new = json.loads(json.dumps(old)), json.loads(json.dumps(new))
    for key in [*plain_old, *plain_new]:
        if plain_old.get(key) != plain_new.get(key):
            return Difference(key, plain_old.get(key), plain_new.get(key))
    return None


def _shown(value: Any) -> str:
    return "absent" if value is None else show_value(value)

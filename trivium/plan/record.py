"""What decided the steps before a given one, key by key, and the fingerprint of it.

Two plans with the same record up to step s took, or would take, exactly the same s steps. Names of stages,
cadences, micro-batches and whatever else decides no step are not in it.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from fractions import Fraction
from hashlib import blake2b
from typing import Any

from pydantic import BaseModel

from trivium.config.optimizer import Optimizer, StageOptimizer, stage_optimizers
from trivium.config.problems import show_value
from trivium.config.redact import redacted
from trivium.config.schema import Config
from trivium.config.sources import BaseSource, StreamSource, ViewSource, fim_of, score_of
from trivium.engine.own import source_hash
from trivium.model.folder import FORM_KEYS, SHAPE_KEYS
from trivium.model.foreign import deciding
from trivium.model.spec import ModelSpec
from trivium.plan.lr.curve import Curve
from trivium.plan.rates import peak_lr
from trivium.plan.settings import family_model, stage_loss
from trivium.plan.stage import PlannedStage
from trivium.rows.order import ORDER_VERSION
from trivium.sources.open import OpenSource

Record = dict[str, Any]

# Of a stage, what decides its steps; all else is entered resolved, below.
STAGE_KEYS = ("seq_len", "packing", "document_mask", "z_loss", "loss_on")
# Of a stream, what decides its documents and their order; what it holds is not known.
STREAM_KEYS = ("dataset", "subset", "split", "column", "lanes", "shuffle_buffer", "block_tokens", "window_blocks")

_PLAIN = {field.name: field.default for field in fields(ModelSpec)}  # layers like Llama's


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
    model: ModelSpec | None,
    sources: Mapping[str, OpenSource],
    stages: Sequence[PlannedStage],
    learning_rate: Curve | None,
    momentum: Curve,
    step: int,
    tokenizer: str | None = None,
) -> Record:
    """Everything that decided the steps before `step`, and the model that they began with.

    `tokenizer` is its fingerprint, where streams are tokenised as they are read.
    """
    entries: Record = {"order": ORDER_VERSION, "run.seed": config.run.seed, **_model_entries(config, model)}
    end = stages[-1].end
    if end is not None and step > end:
        entries["run.steps"] = end  # steps that this plan does not have
    if step == 0:
        return entries
    optimizers = stage_optimizers(config.optimizer, [stage.config for stage in stages])
    first = _optimizer_entries(optimizers[0].settings, model)
    entries |= first
    taken = [stage for stage in stages if stage.start is not None and stage.start < step]
    read = {stage.index: _sources_read(stage, step) for stage in taken}
    for stage in taken:
        entries |= _stage_entries(stage, read[stage.index], [each.name for each in stages])
        entries |= _batch_entries(stage, step)
        optimizer = optimizers[stage.index]
        entries[f"stages[{stage.index}].reset_optimizer"] = optimizer.is_fresh and stage.start != 0  # else it is anyway
        own = _optimizer_entries(optimizer.settings, model)
        entries |= {
            f"stages[{stage.index}].{key}": own.get(key) for key in own | first if own.get(key) != first.get(key)
        }
        entries |= _fade_out_entries(stage, step)
    skipped = [[first, min(end, step)] for first, end in sorted(config.guard.skip_steps) if first < step]
    if skipped:
        entries["guard.skip_steps"] = skipped
    for name in sorted(frozenset().union(*read.values())):
        entries |= _source_entries(name, config, sources)
        if isinstance(config.sources[name], StreamSource):
            entries[f"sources.{name}.tokenizer"] = tokenizer
    if learning_rate is not None:
        entries |= _curve_entries("learning rate", learning_rate, step)
    for start, end in _muon_spans(taken, optimizers, step):
        entries |= _curve_entries("momentum", Curve(tuple(momentum.between(start, end))), end)
    return entries


def group_rate_entries(main: Curve, groups: Mapping[str, Curve], step: int) -> Record:
    """The learning rates of groups of parameters that had others than the layers' matrices."""
    own = {group: found for group, curve in groups.items() if (found := curve.identity(step)) != main.identity(step)}
    return {
        f"learning rate of {group} from step {start}": [formula, ramp] if ramp else formula
        for group, pieces in own.items()
        for start, formula, ramp in pieces
    }


def _curve_entries(name: str, curve: Curve, end: int) -> Record:
    return {
        f"{name} from step {start}": [formula, ramp] if ramp else formula
        for start, formula, ramp in curve.identity(end)
    }


def _muon_spans(
    taken: Sequence[PlannedStage], optimizers: Sequence[StageOptimizer], step: int
) -> list[tuple[int, int]]:
    """The steps before this one that Muon took, which alone has a momentum."""
    spans: list[tuple[int, int]] = []
    for stage in taken:
        if optimizers[stage.index].settings.name != "muon" or stage.start is None:
            continue
        end = step if stage.end is None else min(step, stage.end)
        first = spans.pop()[0] if spans and spans[-1][1] == stage.start else stage.start
        spans.append((first, end))
    return spans


def _sources_read(stage: PlannedStage, step: int) -> frozenset[str]:
    """The sources of which a stage has read a row before a step: what it reads later decides nothing yet."""
    if stage.mixture is None or stage.start is None:
        return frozenset()
    end = step if stage.end is None else min(step, stage.end)
    counts = stage.mixture.count(stage.rows_before(end)).tolist()
    return frozenset(name for name, count in zip(stage.mixture.names, counts, strict=True) if count)


def _source_entries(name: str, config: Config, sources: Mapping[str, OpenSource]) -> Record:
    """What decides a source's documents and the order in which they are read."""
    source = config.sources[name]
    if isinstance(source, StreamSource):
        entries = _fim_entries(name, source, config) | {
            f"sources.{name}.{key}": redacted(getattr(source, key)) for key in STREAM_KEYS
        }
        return entries if source.add is None else entries | {f"sources.{name}.add": sorted(set(source.add))}
    if isinstance(source, ViewSource):
        view = {"from": source.of, "min_tokens": source.min_tokens, "max_tokens": source.max_tokens}
        entries = {f"sources.{name}.{key}": value for key, value in view.items()}
        return entries | _source_entries(source.of or "", config, sources)
    keys = ("block_tokens", "window_blocks", "validation")
    entries = {f"sources.{name}.content": sources[name].content if name in sources else None}
    entries |= {f"sources.{name}.{key}": getattr(source, key) for key in keys}
    score = score_of(source)
    return (
        _fim_entries(name, source, config) | ({} if score is None else _flat(f"sources.{name}.score", score)) | entries
    )


def _fim_entries(name: str, source: BaseSource, config: Config) -> Record:
    """How a source's texts are cut; nothing where they are not."""
    fim = fim_of(source)
    if fim is None:
        return {}
    named = None if config.tokenizer is None else config.tokenizer.fim_tokens
    return _flat(f"sources.{name}.fim", fim) | ({} if named is None else {f"sources.{name}.fim.tokens": list(named)})


def _model_entries(config: Config, spec: ModelSpec | None) -> Record:
    """What decides the initial weights; limits decide nothing, and rotary positions are the stages'."""
    asked = config.model
    entries: Record = {"model.init": asked.init, "model.init_step": asked.init_step}
    entries["model.init_optimizer"] = asked.init_optimizer or None
    if spec is not None and spec.foreign is not None:
        entries["model.family"] = spec.foreign.family
        entries |= {f"model.config.{key}": value for key, value in deciding(spec.foreign, training=True).items()}
    elif spec is not None:
        entries |= {f"model.{key}": getattr(spec, key) for key in (*SHAPE_KEYS, "init_std")}
        form = {f"model.{key}": value for key in FORM_KEYS if (value := getattr(spec, key)) != _PLAIN[key]}
        entries |= {key: list(value) if isinstance(value, tuple) else value for key, value in form.items()}
    family = family_model(config)
    if family is not None:
        entries |= {"model.family": family.path, "model.family.source": source_hash(family)}
    return {key: value for key, value in entries.items() if value is not None}


def _optimizer_entries(optimizer: Optimizer, model: ModelSpec | None) -> Record:
    """Learning rates by group, scaled, whichever way they were written; momentum has a curve of its own."""
    apart = ("momentum", "lr", "lr_scaling")
    entries = _flat(
        "optimizer", optimizer, [key for key in Optimizer.model_fields if optimizer.has(key) and key not in apart]
    )
    entries["optimizer.no_decay"] = sorted(optimizer.no_decay)
    rates = peak_lr(optimizer, None if model is None else model.width)
    return entries | {f"optimizer.lr.{group}": rate for group, rate in rates.items()}


def _stage_entries(stage: PlannedStage, read: frozenset[str], names: Sequence[str]) -> Record:
    path = f"stages[{stage.index}]"
    config = stage.config
    entries: Record = {f"{path}.start": stage.start, f"{path}.seed": stage.seed}
    entries |= {f"{path}.{key}": getattr(config, key) for key in STAGE_KEYS}
    if stage.rope is not None:
        entries |= {f"{path}.rope.{key}": value for key, value in stage.rope.deciding().items()}
    if config.start_from is not None:
        entries[f"{path}.start_from"] = config.start_from
    if stage.average is not None:
        entries |= _flat(f"{path}.average", stage.average.config)
    loss = stage_loss(config, stage.index)
    if loss is not None:
        entries |= {f"{path}.loss": loss.path, f"{path}.loss.source": source_hash(loss)}
    if config.kl is not None:
        entries |= _flat(f"{path}.kl", config.kl)
        if config.kl.reference is not None and config.kl.reference.stage is not None:
            entries[f"{path}.kl.reference.stage"] = names.index(config.kl.reference.stage)
    if config.distill is not None:
        entries |= _flat(f"{path}.distill", config.distill)
    if stage.freeze:
        entries[f"{path}.freeze"] = list(stage.freeze)
    if config.vocab is not None:
        entries[f"{path}.vocab"] = config.vocab
    if config.goldfish is not None:
        entries |= _flat(f"{path}.goldfish", config.goldfish)
    for name, weight in sorted((config.loss_weight or {}).items()):
        if name in read and weight != 1:
            entries[f"{path}.loss_weight.{name}"] = weight
    for name, use in stage.uses.items():
        if name in read and not use.masks_loss and config.loss_on is None:
            entries[f"{path}.loss_on.{name}"] = "all"  # as the source has it
    if stage.mixture is not None:
        for name, share in zip(stage.mixture.new.names, stage.mixture.new.shares, strict=True):
            if share:
                entries[f"{path}.mixture.{name}"] = _decimal(share)
        if stage.mixture.fade.rows:
            entries[f"{path}.fade"] = str(stage.mixture.fade)
    return entries


def _batch_entries(stage: PlannedStage, step: int) -> Record:
    """Rows in a step, as one number; where they have changed, each size with the stage's step that it began at."""
    assert stage.start is not None, "the stage has begun"
    pieces = stage.batches.until(step - stage.start)
    sizes = pieces[0].size if len(pieces) == 1 else [[piece.step, piece.size] for piece in pieces]
    return {f"stages[{stage.index}].batch_size": sizes}


def _fade_out_entries(stage: PlannedStage, step: int) -> Record:
    """The next stage's centred fade, once rows of this stage have come from it."""
    if stage.mixture is None or stage.mixture.out is None or stage.start is None:
        return {}
    out, path = stage.mixture.out, f"stages[{stage.index}].fade_out"
    if stage.rows_before(step) <= out.first:
        return {}
    shares = zip(out.mixture.names, out.mixture.shares, strict=True)
    entries = {f"{path}.{name}": _decimal(share) for name, share in shares if share}
    return {path: f"from row {out.first}, {out.fade}", **entries}


def _decimal(share: Fraction) -> str:
    """`0.8` where that is exact, else `1/3`."""
    decimal = repr(float(share))
    return decimal if Fraction(decimal) == share else str(share)


def _flat(path: str, table: BaseModel, keys: Iterable[str] | None = None) -> Record:
    """A table's keys that have a value, or some of them."""
    entries: Record = {}
    for name in type(table).model_fields if keys is None else keys:
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
    differing = [key for key in [*plain_old, *plain_new] if plain_old.get(key) != plain_new.get(key)]
    if not differing:
        return None
    # What was written decides a source's content, and says more than the hash of it.
    key = next((key for key in differing if not key.endswith(".content")), differing[0])
    return Difference(key, plain_old.get(key), plain_new.get(key))


def _shown(value: Any) -> str:
    return "absent" if value is None else show_value(value)

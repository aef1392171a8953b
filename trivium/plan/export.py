"""A plan for machines: the JSON that `trivium plan --json` prints and a run folder keeps."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from pydantic import BaseModel

from trivium.config.dialects.translation import Notes
from trivium.config.load import Loaded
from trivium.config.numbers import show_count
from trivium.config.problems import show_value
from trivium.config.sources import fim_of
from trivium.model.spec import DEFAULT_THETA, ModelSpec, RopeSpec
from trivium.model.words import export_line, layer_line
from trivium.plan.average import average_words
from trivium.plan.budget import measured_every
from trivium.plan.lr.curve import Curve
from trivium.plan.lr.words import rate_lines
from trivium.plan.plan import Plan
from trivium.plan.stage import PlannedStage

MOST_SHOWN_SIZES = 4  # of a batch size that changes
CURVE_POINTS = 128  # of a piece of the learning rate that is not a line


def plan_json(plan: Plan, loaded: Loaded | None = None) -> dict[str, Any]:
    """Every stage, every source, the totals and the notes; null where something is not known."""
    taken = inherited_values(plan)
    notes, warnings = (loaded.notes, loaded.warnings) if loaded is not None else (Notes(), ())
    return {
        "run": plan.config.run.name,
        "seed": plan.config.run.seed,
        "total_steps": plan.total_steps,
        "total_tokens": None if plan.total_steps is None else plan.tokens_before(plan.total_steps),
        "fingerprint": plan.fingerprint(plan.known_steps),
        "model": None if plan.model is None else _model_json(plan.model, plan.stages[-1].rope),
        "starting": None if plan.starting is None else asdict(plan.starting),
        "peak_lr": plan.peak_lr,
        "lr_curve": None if plan.learning_rate is None else _lr_curve(plan, plan.learning_rate),
        "group_lr_curves": {group: _lr_curve(plan, curve) for group, curve in plan.group_learning_rates.items()},
        "learning_rates": rate_lines(plan),
        "stages": [stage_json(plan, stage) for stage in plan.stages],
        "sources": {
            name: {"kind": source.kind}
            | {key: getattr(plan.sources.get(name), key, None) for key in ("documents", "tokens", "fingerprint")}
            | {"expected_tokens": source.expected_tokens}
            | {"without": sorted(set(source.without or ()))}
            | {"fim": None if (fim := fim_of(source)) is None else fim.model_dump()}
            | {"tasks": [task._asdict() for task in plan.sources[name].tasks] if name in plan.sources else None}
            for name, source in plan.config.sources.items()
        },
        "decisions": [decision.line() for decision in plan.decisions],
        "inherited": {"from": plan.inherited.base, "keys": taken} if taken else None,
        "differs": [str(note) for note in notes.differs],
        "decides_nothing": [str(note) for note in notes.decides_nothing],
        "warnings": [str(warning) for warning in (*warnings, *plan.warnings)],
        "unknown": [str(gap) for gap in plan.gaps],
    }


def _model_json(spec: ModelSpec, rope: RopeSpec | None) -> dict[str, Any]:
    """The shape, with words about layers that differ from Llama's, and about its export."""
    words = {"layers_are": layer_line(spec), "export": export_line(spec, rope)}
    return asdict(spec) | {"parameters": spec.parameters} | words


def inherited_values(plan: Plan) -> dict[str, Any]:
    """What the config took from the run that its weights come from, as it would be written."""
    return {
        key: value.model_dump(mode="json", exclude_unset=True) if isinstance(value, BaseModel) else value
        for key, value in plan.inherited.taken.items()
    }


def _lr_curve(plan: Plan, curve: Curve) -> list[tuple[int, float]] | None:
    """Steps with the learning rate's multiplier, close enough that the curve looks straight between them."""
    if not plan.known_steps:
        return None
    pieces = curve.until(plan.known_steps)
    ends = [*(piece.start for piece in pieces[1:]), plan.known_steps]
    steps: set[int] = set()
    for piece, end in zip(pieces, ends, strict=True):
        steps |= {piece.start, end - 1}
        if piece.line(end - piece.start) is None:
            steps |= set(range(piece.start, end, max(1, (end - piece.start) // CURVE_POINTS)))
    return [(step, curve.at(step)) for step in sorted(steps)]


def stage_json(plan: Plan, stage: PlannedStage) -> dict[str, Any]:
    """One stage: its length, its rows, its objective, its learning rate, and what it reads."""
    first, last = plan.lr_ends(stage)
    budgets = {"steps": stage.config.steps, "tokens": stage.config.budget_tokens}
    asked: dict[str, Any] = {key: value for key, value in budgets.items() if value is not None}
    if stage.config.tokens is not None and stage.config.tokens.per_parameter is not None:
        asked["per_parameter"] = stage.config.tokens.per_parameter
    if stage.config.epochs is not None:
        asked = {"epochs": stage.config.epochs.as_written()}
    return {
        "name": stage.name,
        "start": stage.start,
        "end": stage.end,
        "steps": stage.steps,
        "asked": asked,
        "longest": stage.longest,
        "until": until_words(plan, stage),
        "ended_early": stage.ended is not None,
        "tokens": stage.tokens,
        "flops_per_token": plan.flops_per_token(stage),
        "seq_len": stage.seq_len,
        "batch_size": stage.batch_size,
        "batches": [[piece.step, piece.size] for piece in stage.batch_pieces],
        "packing": stage.config.packing,
        "document_mask": stage.config.document_mask,
        "rope": None if stage.rope is None else stage.rope.deciding(),
        "kl": None if stage.config.kl is None else stage.config.kl.model_dump(mode="json", exclude_none=True),
        "distill": _distill_json(stage),
        "freeze": list(stage.freeze),
        "vocab": stage.vocab,
        "average": None if stage.average is None else stage.average.config.model_dump(mode="json", exclude_none=True),
        "start_from": stage.config.start_from,
        "loss_on": stage.config.loss_on,
        "loss": stage.config.loss,
        "loss_weight": None if stage.config.loss_weight is None else dict(stage.config.loss_weight),
        "goldfish": None if stage.config.goldfish is None else stage.config.goldfish.model_dump(mode="json"),
        "engine": stage.config.engine.model_dump(mode="json", exclude_none=True),
        "optimizer": _optimizer_json(plan, stage),
        "peak_lr": plan.peak_lr_of(stage),
        "seed": stage.seed,
        "shares": None if stage.shares is None else {name: float(share) for name, share in stage.shares.items()},
        **_fade_json(stage),
        "lr": None if stage.config.lr is None else stage.config.lr.model_dump(mode="json", exclude_unset=True),
        "lr_multiplier": {"first": first, "last": last},
        "uses": {
            name: {
                "rows": use.rows,
                "tokens": use.rows * stage.seq_len,
                "loss_tokens": use.loss_tokens,
                "loss_tokens_expected": use.dropped > 0,
                "figures": None if use.figures is None else asdict(use.figures),
                "epochs": use.epochs,
                "epochs_so_far": use.epochs_so_far,
            }
            for name, use in stage.uses.items()
        },
    }


def until_words(plan: Plan, stage: PlannedStage) -> str | None:
    """`may end earlier: when validation loss of code is below 1.2, checked every 50 steps`; or that it has."""
    until, ended, config = stage.config.until, stage.ended, plan.config
    if until is None:
        return None
    if ended is not None:
        return f"ended at step {ended.step:,} of {_longest_end(stage)} with {ended.until} ({ended.figure:.4g})"
    every = measured_every(config.evaluate, stage.config)
    of = " of the average" if stage.average is not None and config.evaluate.weights == "average" else ""
    bound = f"is at least {until.at_least:g}" if until.score is not None else f"is below {until.below:g}"
    checked = "" if every is None else f", checked every {every:,} steps"
    return f"may end earlier, when the {until.figure}{of} {bound}{checked}"


def _longest_end(stage: PlannedStage) -> str:
    return "?" if stage.start is None or stage.longest is None else f"{stage.start + stage.longest:,}"


def _distill_json(stage: PlannedStage) -> dict[str, Any] | None:
    """A stage's teacher, with its parameters where they are known."""
    if stage.config.distill is None:
        return None
    parameters = None if stage.teacher is None else stage.teacher.parameters
    return stage.config.distill.model_dump(mode="json", exclude_none=True) | {"parameters": parameters}


def _optimizer_json(plan: Plan, stage: PlannedStage) -> dict[str, Any]:
    """A stage's optimizer by name, whether its state starts fresh, and what differs from `[optimizer]`."""
    optimizer = plan.optimizers[stage.index]
    written = optimizer.settings.model_dump(mode="json", exclude_none=True)
    run = plan.config.optimizer.model_dump(mode="json", exclude_none=True)
    changed = {key: value for key, value in written.items() if value != run.get(key)}
    is_fresh = optimizer.is_fresh and stage.index > 0
    return {"name": optimizer.settings.name, "fresh": is_fresh, "changed": changed}


def objective_lines(stages: Sequence[Mapping[str, Any]]) -> list[str]:
    """`chat: kl 0.1, loss on assistant`: what stages of a plan's JSON have beside their rows; rope where it changes.

    A batch size that changes has the steps of the run at which it does.
    """
    lines: list[str] = []
    before = average = None
    last: Mapping[str, Any] = {}
    for stage in stages:
        rope, kl, loss_on, engine = (stage.get(key) for key in ("rope", "kl", "loss_on", "engine"))
        parts = [*([stage["until"]] if stage.get("until") else []), *_batch_parts(stage)]
        if rope is not None and rope != (before or {"theta": DEFAULT_THETA}):
            dropped = f", none in layers {', '.join(map(str, rope['dropped']))}" if "dropped" in rope else ""
            sliding = f", sliding layers {_rope_words(rope['sliding'])}" if "sliding" in rope else ""
            parts.append(f"rope {_rope_words(rope)}{dropped}{sliding}")
        if kl is not None:
            reference = kl.get("reference") or {}
            to = reference.get("path") or reference.get("stage") or "the model as the stage begins"
            parts.append(f"kl {kl['beta']:g} ({kl.get('direction', 'forward')}) to {to}")
        parts += _distill_parts(stage.get("distill")) + _model_parts(stage, last)
        last = stage
        if stage.get("loss") is not None:
            parts.append(f"loss {stage['loss']}")
        if loss_on is not None:
            parts.append(f"loss on {loss_on}")
        if stage.get("loss_weight"):
            weights = ", ".join(f"{name} {weight:g}" for name, weight in stage["loss_weight"].items())
            parts.append(f"loss weights {weights}, others 1")
        if stage.get("goldfish"):
            k, h = stage["goldfish"]["k"], stage["goldfish"]["h"]
            parts.append(f"goldfish drops about 1 in {k:,} tokens from the loss, by the {h:,} before it")
        parts += _average_parts(stage, average)
        average = stage.get("average")
        parts += [f"engine.{key} {value}" for key, value in (engine or {}).items()]
        parts += _optimizer_words(stage.get("optimizer"))
        before = rope
        if parts:
            lines.append(f"{stage['name']}: {', '.join(parts)}")
    return lines


def _distill_parts(distill: Mapping[str, Any] | None) -> list[str]:
    """`distilled 0.5 from runs/teacher (1.2B parameters), temperature 2, its 64 most likely tokens`."""
    if distill is None:
        return []
    parameters = distill.get("parameters")
    size = "" if parameters is None else f" ({show_count(parameters)} parameters)"
    how = "" if distill["temperature"] == 1 else f" at temperature {distill['temperature']:g}"
    tokens = f" by its {distill['top_k']:,} most likely tokens" if "top_k" in distill else ""
    return [f"distilled {distill['beta']:g} from {distill['path']}{size}{how}{tokens}"]


def _model_parts(stage: Mapping[str, Any], before: Mapping[str, Any]) -> list[str]:
    """`frozen: embedding, layers.0-11`, `vocabulary 32,064 (64 new)`: where they change."""
    parts = []
    frozen, was = stage.get("freeze") or [], before.get("freeze") or []
    if frozen != was:
        parts.append(f"frozen: {', '.join(frozen)}" if frozen else "nothing frozen")
    vocab, had = stage.get("vocab"), before.get("vocab")
    if vocab is not None and had is not None and vocab != had:
        parts.append(f"vocabulary {vocab:,} ({vocab - had:,} new)")
    return parts


def _rope_words(rope: Mapping[str, Any]) -> str:
    """`theta 500,000, yarn by 8 of 8,192, beta_fast 16`: of the other keys those that were written."""
    scaling = f", {rope['scaling']} by {rope['factor']:g}" if "scaling" in rope else ""
    original = f" of {rope['original_seq_len']:,}" if "original_seq_len" in rope else ""
    keys = ("attention_factor", "beta_fast", "beta_slow", "low_freq_factor", "high_freq_factor")
    others = [f", {key} {rope[key]:g}" for key in keys if rope.get(key) not in (None, getattr(RopeSpec(), key))]
    return f"theta {rope['theta']:,.12g}{scaling}{original}{''.join(others)}"


def _batch_parts(stage: Mapping[str, Any]) -> list[str]:
    """`8,192 rows in a step, 7,680 from step 4,000`; of many sizes the first and the last ones."""
    sizes, start = stage.get("batches") or [], stage["start"]
    if len(sizes) < 2:
        return []
    of = " of the stage" if start is None else ""
    shown = [f"{size:,} from step {(start or 0) + step:,}{of}" for step, size in sizes]
    middle = [f"and so on in {len(sizes):,} sizes"] if len(sizes) > MOST_SHOWN_SIZES else []
    first, last = (shown[1:2], shown[-1:]) if middle else (shown[1:], [])
    return [", ".join([f"{sizes[0][1]:,} rows in a step", *first, *middle, *last])]


def _optimizer_words(optimizer: Mapping[str, Any] | None) -> list[str]:
    """`muon with a fresh state, optimizer.grad_clip 0.2`."""
    if optimizer is None:
        return []
    words = [f"{optimizer['name']} with a fresh state"] if optimizer["fresh"] else []
    changed = {key: value for key, value in optimizer["changed"].items() if not (words and key == "name")}
    return words + [f"optimizer.{key} {show_value(value)}" for key, value in changed.items()]


def _average_parts(stage: Mapping[str, Any], before: Mapping[str, Any] | None) -> list[str]:
    """`starts from the average`, `keeps an average: ema 0.999`: where it changes."""
    kept = stage.get("average")
    parts = ["starts from the average"] if stage.get("start_from") is not None else []
    if kept is not None and kept != before:
        parts.append(f"keeps an average ({average_words(kept)})")
    elif kept is None and before is not None:
        parts.append("keeps no average")
    return parts


def _fade_json(stage: PlannedStage) -> dict[str, Any]:
    """A stage's fade, in its own rows, and how many of its last rows are in the next stage's."""
    if stage.mixture is None:
        return {"fade_rows": None, "fade_shape": None}
    fade, out = stage.mixture.fade, stage.mixture.out
    return {
        "fade_rows": fade.rows,
        "fade_shape": fade.shape,
        "fade_steepness": fade.steepness,
        "fade_rows_before": fade.before,
        "fade_out_rows": 0 if out is None else out.fade.before,
    }

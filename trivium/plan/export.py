"""A plan for machines: the JSON that `trivium plan --json` prints and a run folder keeps."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from pydantic import BaseModel

from trivium.config.dialects.translation import Notes
from trivium.config.load import Loaded
from trivium.model.spec import DEFAULT_THETA
from trivium.plan.average import average_words
from trivium.plan.plan import Plan
from trivium.plan.stage import PlannedStage

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
        "model": None if plan.model is None else asdict(plan.model) | {"parameters": plan.model.parameters},
        "peak_lr": plan.peak_lr,
        "lr_curve": _lr_curve(plan),
        "stages": [stage_json(plan, stage) for stage in plan.stages],
        "sources": {
            name: {"kind": source.kind}
            | {key: getattr(plan.sources.get(name), key, None) for key in ("documents", "tokens", "fingerprint")}
            | {"tasks": [task._asdict() for task in plan.sources[name].tasks] if name in plan.sources else None}
            for name, source in plan.config.sources.items()
        },
        "inherited": {"from": plan.inherited.base, "keys": taken} if taken else None,
        "differs": [str(note) for note in notes.differs],
        "decides_nothing": [str(note) for note in notes.decides_nothing],
        "warnings": [str(warning) for warning in (*warnings, *plan.warnings)],
        "unknown": [str(gap) for gap in plan.gaps],
    }


def inherited_values(plan: Plan) -> dict[str, Any]:
    """What the config took from the run that its weights come from, as it would be written."""
    return {
        key: value.model_dump(mode="json", exclude_unset=True) if isinstance(value, BaseModel) else value
        for key, value in plan.inherited.taken.items()
    }


def _lr_curve(plan: Plan) -> list[tuple[int, float]] | None:
    """Steps with the learning rate's multiplier, close enough that the curve looks straight between them."""
    if plan.learning_rate is None or not plan.known_steps:
        return None
    pieces = plan.learning_rate.until(plan.known_steps)
    ends = [*(piece.start for piece in pieces[1:]), plan.known_steps]
    steps: set[int] = set()
    for piece, end in zip(pieces, ends, strict=True):
        steps |= {piece.start, end - 1}
        if piece.line(end - piece.start) is None:
            steps |= set(range(piece.start, end, max(1, (end - piece.start) // CURVE_POINTS)))
    return [(step, plan.lr_multiplier(step)) for step in sorted(steps)]


def stage_json(plan: Plan, stage: PlannedStage) -> dict[str, Any]:
    """One stage: its length, its rows, its objective, its learning rate, and what it reads."""
    first, last = plan.lr_ends(stage)
    asked = {key: value for key in ("steps", "tokens") if (value := getattr(stage.config, key)) is not None}
    if stage.config.epochs is not None:
        asked = {"epochs": stage.config.epochs.as_written()}
    return {
        "name": stage.name,
        "start": stage.start,
        "end": stage.end,
        "steps": stage.steps,
        "asked": asked,
        "tokens": stage.tokens,
        "flops_per_token": plan.flops_per_token(stage),
        "seq_len": stage.seq_len,
        "batch_size": stage.batch_size,
        "packing": stage.config.packing,
        "document_mask": stage.config.document_mask,
        "rope": None if stage.rope is None else stage.rope.deciding(),
        "kl": None if stage.config.kl is None else stage.config.kl.model_dump(mode="json", exclude_none=True),
        "average": None if stage.average is None else stage.average.config.model_dump(mode="json", exclude_none=True),
        "start_from": stage.config.start_from,
        "loss_on": stage.config.loss_on,
        "engine": stage.config.engine.model_dump(mode="json", exclude_none=True),
        "seed": stage.seed,
        "shares": None if stage.shares is None else {name: float(share) for name, share in stage.shares.items()},
        **_fade_json(stage),
        "lr_multiplier": {"first": first, "last": last},
        "uses": {
            name: {
                "rows": use.rows,
                "tokens": use.rows * stage.seq_len,
                "loss_tokens": use.loss_tokens,
                "figures": None if use.figures is None else asdict(use.figures),
                "epochs": use.epochs,
                "epochs_so_far": use.epochs_so_far,
            }
            for name, use in stage.uses.items()
        },
    }


def objective_lines(stages: Sequence[Mapping[str, Any]]) -> list[str]:
    """`chat: kl 0.1, loss on assistant`: what stages of a plan's JSON have beside their rows; rope where it changes."""
    lines: list[str] = []
    before = average = None
    for stage in stages:
        rope, kl, loss_on, engine = (stage.get(key) for key in ("rope", "kl", "loss_on", "engine"))
        parts = []
        if rope is not None and rope != (before or {"theta": DEFAULT_THETA}):
            theta = f"theta {rope['theta']:,g}"
            scaling = f", {rope['scaling']} by {rope['factor']:g}" if "scaling" in rope else ""
            original = f" of {rope['original_seq_len']:,}" if "original_seq_len" in rope else ""
            dropped = f", none in layers {', '.join(map(str, rope['dropped']))}" if "dropped" in rope else ""
            parts.append(f"rope {theta}{scaling}{original}{dropped}")
        if kl is not None:
            reference = kl.get("reference") or {}
            to = reference.get("path") or reference.get("stage") or "the model as the stage begins"
            parts.append(f"kl {kl['beta']:g} ({kl.get('direction', 'forward')}) to {to}")
        if loss_on is not None:
            parts.append(f"loss on {loss_on}")
        parts += _average_parts(stage, average)
        average = stage.get("average")
        parts += [f"engine.{key} {value}" for key, value in (engine or {}).items()]
        before = rope
        if parts:
            lines.append(f"{stage['name']}: {', '.join(parts)}")
    return lines


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

"""torchtitan's model config -> the keys of `[model]` that describe the same, and where a config says otherwise.

The model is torchtitan's. A config that has no shape is given that of torchtitan's model, so that it can be planned;
one that has a shape must have the same one.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trivium.errors import Problem
from trivium.model.spec import ModelSpec
from trivium.plan.plan import CompletePlan

WAYS = ("size", "depth", "layers", "width", "init", "config")  # in which a config gives a model's shape


def shape_of(model: Any) -> dict[str, Any]:
    """The keys of `[model]` for a decoder of torchtitan; of its attention those that it has."""
    attention = model.first_attention
    found: dict[str, Any] = {"layers": len(model.layers), "width": model.dim, "vocab": model.vocab_size}
    found["tied_embeddings"] = bool(model.enable_weight_tying)
    found["norm_eps"] = float(model.norm.eps)
    if attention is not None:
        found["heads"] = attention.n_heads
        found["kv_heads"] = getattr(attention, "n_kv_heads", None) or attention.n_heads
        # Latent attention has no one width of a head: what follows from the width stands for it.
        found["head_dim"] = getattr(attention, "head_dim", None) or model.dim // attention.n_heads
        found["qk_norm"] = getattr(attention, "qk_norm", None) is not None
    feed_forward = getattr(model.layers[0], "feed_forward", None)
    if feed_forward is not None:
        found["ffn"] = feed_forward.w1.out_features
    return found


def rope_of(model: Any) -> dict[str, Any] | None:
    """The keys of `model.rope` for the same rotary positions; None where ours cannot say them, or there are none."""
    rope = getattr(model.first_attention, "rope", None)
    if rope is None:
        return None
    found: dict[str, Any] = {"theta": float(rope.theta)}
    if rope.scaling == "llama":
        return found | {
            "scaling": "llama3",
            "factor": float(rope.scaling_factor),
            "low_freq_factor": float(rope.low_freq_factor),
            "high_freq_factor": float(rope.high_freq_factor),
            "original_seq_len": rope.original_max_position_embeddings,
        }
    return found if rope.scaling == "none" or rope.rope_factor <= 1 else None


def added(model: Any, tables: Mapping[str, Any], overrides: Sequence[str] = ()) -> list[str]:
    """Overrides that give a config torchtitan's model, where it describes none itself; the user's come after them."""
    given = tables.get("model", {})
    if not isinstance(given, dict):
        return []  # what it is will be refused by name
    whole = {f"model.{key}" for key in WAYS} - {"model.layers", "model.width"}
    has_shape = any(key in given for key in WAYS) or any(each.partition("=")[0] in whole for each in overrides)
    keys = {} if has_shape else {key: value for key, value in shape_of(model).items() if key not in given}
    rope = rope_of(model)
    if rope is not None and "rope" not in given and not has_shape:
        keys |= {f"rope.{key}": value for key, value in rope.items()}
    return [f"model.{key}={_written(value)}" for key, value in keys.items()]


def _written(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value).lower() if isinstance(value, bool) else str(value)


def differences(model: Any, spec: ModelSpec) -> Iterator[Problem]:
    """Where a config describes another model than torchtitan's."""
    for key, theirs in shape_of(model).items():
        ours = getattr(spec, key)
        if ours != theirs:
            what = f"is {_shown(ours)}, and torchtitan's model has {_shown(theirs)}. Leave the shape out of [model]"
            yield Problem(f"model.{key}", f"{what}, or write the same.")


def _shown(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else _written(value)


def writes_rope(tables: Mapping[str, Any]) -> bool:
    """Whether a config has rotary positions of its own anywhere: if not, torchtitan's stay."""
    stages = [table for table in tables.get("stages", ()) if isinstance(table, dict)]
    parts = [*stages, tables.get("defaults", {}), tables.get("model", {})]
    return any("rope" in part for part in parts if isinstance(part, dict))


def form_problems(model: Any, plan: CompletePlan) -> Iterator[Problem]:
    """Keys of `[model]` that say how trivium's own decoder is made, and that torchtitan's model would pass over."""
    compared = {*shape_of(model), *WAYS, "rope", "max_seq_len", "init_step", "init_optimizer"}
    for key in sorted(plan.config.model.model_fields_set - compared):
        what = "is given, but the model is torchtitan's, and its config says how it is made. Leave it out."
        yield Problem(f"model.{key}", what)


def experts_problems(model: Any, plan: CompletePlan) -> Iterator[Problem]:
    """A length in tokens for each parameter counts a decoder's matrices, and not experts."""
    if all(getattr(layer, "moe", None) is None for layer in model.layers):
        return
    for stage in plan.stages:
        if stage.config.tokens is not None and stage.config.tokens.per_parameter is not None:
            what = "counts the matrices of a decoder without experts. Write a number of tokens."
            yield Problem(f"stages[{stage.index}].tokens", what)


def rope_problems(model: Any, plan: CompletePlan) -> Iterator[Problem]:
    """Rotary positions by stage need layers that have torchtitan's tables, of a kind that ours can say."""
    if rope_of(model) is not None:
        return
    given = ["model.rope"] if plan.config.model.rope is not None else []
    given += [f"stages[{stage.index}].rope" for stage in plan.stages if stage.config.rope is not None]
    for where in given:
        what = "is given, but torchtitan's model has rotary positions that a config cannot change: YaRN's, or none"
        yield Problem(where, f"{what}. Leave it out.")


def length_problems(model: Any, plan: CompletePlan) -> Iterator[Problem]:
    """Rows are not longer than what torchtitan's model was made for."""
    for stage in plan.stages:
        if stage.seq_len > model.max_seq_len:
            what = f"is {stage.seq_len:,}, and torchtitan's model reads rows of {model.max_seq_len:,}"
            yield Problem(f"stages[{stage.index}].seq_len", f"{what}. Write that or less.")

"""Rotary positions of a config.json <-> ours: flat or by layer type, under keys of transformers 5 or of earlier ones.

transformers 5    rope_parameters = {rope_theta, rope_type, ...}, or {full_attention = {...}, sliding_attention = {...}}
before            rope_theta and rope_scaling, and rope_local_base_freq of Gemma's sliding layers
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from trivium.model.families.family import Family
from trivium.model.spec import DEFAULT_THETA, RopeSpec

FULL, SLIDING = "full_attention", "sliding_attention"
NUMBERS = ("rope_theta", "factor", "attention_factor", "beta_fast", "beta_slow", "low_freq_factor", "high_freq_factor")
KINDS = ("default", "linear", "yarn", "llama3")


def their_ropes(config: dict[str, Any], family: Family) -> dict[str, dict[str, Any]]:
    """Rotary keys by layer type; families without types have those of all layers alone."""
    nested = config.get("rope_parameters")
    scaling = config.get("rope_scaling") if isinstance(config.get("rope_scaling"), dict) else {}
    theta = {"rope_theta": config["rope_theta"]} if config.get("rope_theta") is not None else {}
    if not family.rope_by_type:
        return {FULL: theta | (scaling or {}) | (nested if isinstance(nested, dict) else {})}
    full = theta | (scaling or {})
    local = config.get("rope_local_base_freq")
    sliding = theta if local is None else {"rope_theta": local}
    if isinstance(nested, dict):
        full, sliding = theta | (nested.get(FULL) or {}), sliding | (nested.get(SLIDING) or {})
    return {FULL: full, SLIDING: sliding}


def rope_misfits(config: dict[str, Any], family: Family) -> Iterator[str]:
    """What of a config's rotary positions is not known here."""
    for key in ("rope_scaling", "rope_parameters"):
        if not isinstance(config.get(key), dict | None):
            yield f"{key} is {json.dumps(config[key])}. It must be a table, or null."
            return
    nested = config.get("rope_parameters") or {}
    by_type = {key for key, value in nested.items() if isinstance(value, dict)}
    if by_type and not family.rope_by_type:
        yield f"rope_parameters are by layer type ({', '.join(sorted(by_type))}), which {family.name} does not have."
        return
    if by_type - {FULL, SLIDING} or (nested and family.rope_by_type and not by_type):
        yield f"rope_parameters of {family.name} are tables full_attention and sliding_attention, and no others."
        return
    if family.has_xielu and not nested and not config.get("rope_scaling"):
        yield "rope_parameters are missing, which versions of transformers read in different ways. Write them."
    for rope in their_ropes(config, family).values():
        kind = _kind(rope)
        if kind not in KINDS:
            yield f"rope_type is {json.dumps(kind)}, which is not built; default, linear, yarn and llama3 are."
        for key in ("mscale", "mscale_all_dim"):
            if rope.get(key) is not None:
                yield f"{key} of the rotary positions is {rope[key]}, which is not built."
        if rope.get("truncate", True) is not True:
            yield "truncate of the rotary positions is false, which is not built."
        if rope.get("partial_rotary_factor") not in (None, 1.0):
            yield f"partial_rotary_factor is {json.dumps(rope['partial_rotary_factor'])}, which is not built; 1.0 is."


def is_scaled(rope: dict[str, Any]) -> bool:
    return bool(_kind(rope) != "default")


def read_rope(config: dict[str, Any], family: Family, sliding: tuple[int, ...], dropped: tuple[int, ...]) -> RopeSpec:
    """Rotary positions, with those of sliding layers where these are others."""
    ropes = {kind: _read(theirs, config) for kind, theirs in their_ropes(config, family).items()}
    own = ropes.get(SLIDING)
    return replace(ropes[FULL], dropped=dropped, sliding=own if sliding and own != ropes[FULL] else None)


def written_rope(rope: RopeSpec, family: Family) -> dict[str, Any]:
    """The keys of a config.json."""
    if family.rope_by_type:
        return {"rope_parameters": {FULL: _parameters(rope), SLIDING: _parameters(rope.sliding or rope)}}
    keys = {"rope_theta": rope.theta, "rope_scaling": None if rope.scaling is None else _parameters(rope)}
    return keys | ({"rope_parameters": _parameters(rope)} if family.has_xielu else {})


def _kind(rope: dict[str, Any]) -> Any:
    return rope.get("rope_type", rope.get("type", "default"))


def _read(theirs: dict[str, Any], config: dict[str, Any]) -> RopeSpec:
    theta = float(theirs.get("rope_theta") or DEFAULT_THETA)
    kind = _kind(theirs)
    if kind == "default":
        return RopeSpec(theta)
    plain = RopeSpec(theta)
    return RopeSpec(
        theta=theta,
        scaling=kind,
        factor=float(theirs["factor"]),
        original_seq_len=int(theirs.get("original_max_position_embeddings") or config["max_position_embeddings"]),
        attention_factor=theirs.get("attention_factor"),
        beta_fast=float(theirs.get("beta_fast") or plain.beta_fast),
        beta_slow=float(theirs.get("beta_slow") or plain.beta_slow),
        low_freq_factor=float(theirs.get("low_freq_factor") or plain.low_freq_factor),
        high_freq_factor=float(theirs.get("high_freq_factor") or plain.high_freq_factor),
    )


def _parameters(rope: RopeSpec) -> dict[str, Any]:
    if rope.scaling is None:
        return {"rope_type": "default", "rope_theta": rope.theta}
    if rope.scaling == "ntk-by-parts":  # yarn without its attention factor; they have no name for it
        rope = replace(rope, scaling="yarn", attention_factor=1.0)
    theirs = {"scaling": "rope_type", "theta": "rope_theta", "original_seq_len": "original_max_position_embeddings"}
    plain = replace(rope, dropped=(), sliding=None)
    return {theirs.get(key, key): value for key, value in plain.deciding().items()}

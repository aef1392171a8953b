"""A Hugging Face folder's config.json <-> a model's shape, and their names of parameters <-> ours; no framework.

Read: Llama, Mistral, Qwen3 and SmolLM3. Whatever would change the model's answers and is not known here is refused.
Written: Qwen3 where queries and keys are normalised, SmolLM3 where some layers have no rotary positions, Llama
otherwise. A Mistral without a sliding window *is* a
Llama; one with a window is read with rows no longer than the window, where it has no effect.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from trivium.errors import ConfigError, Problem
from trivium.files import read_json
from trivium.model.spec import DEFAULT_THETA, MOST_LAYERS, ModelSpec, RopeSpec

FAMILIES = ("llama", "mistral", "qwen3", "smollm3")
CLASSES = {"llama": "LlamaForCausalLM", "qwen3": "Qwen3ForCausalLM", "smollm3": "SmolLM3ForCausalLM"}
CONFIG_FILE = "config.json"

_LAYER_PARTS = {
    "attention_norm": "input_layernorm",
    "attention.query": "self_attn.q_proj",
    "attention.key": "self_attn.k_proj",
    "attention.value": "self_attn.v_proj",
    "attention.output": "self_attn.o_proj",
    "attention.query_norm": "self_attn.q_norm",
    "attention.key_norm": "self_attn.k_norm",
    "feed_forward_norm": "post_attention_layernorm",
    "feed_forward.gate": "mlp.gate_proj",
    "feed_forward.up": "mlp.up_proj",
    "feed_forward.down": "mlp.down_proj",
}
_OTHER_PARTS = {"embedding": "model.embed_tokens", "norm": "model.norm", "unembedding": "lm_head"}

NO_WINDOW = {"use_sliding_window": False, "sliding_window": None, "layer_types": None}

# Values under which a key has no effect; anything else would have to be built first.
_WITHOUT_EFFECT: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("silu",),
    "attention_bias": (False, None),
    "mlp_bias": (False, None),
    "use_sliding_window": (False, None),
    "partial_rotary_factor": (1.0, None),
    "quantization_config": (None,),
    "attention_dropout": (0.0, None),
}


_SIZES = (
    "num_hidden_layers",
    "hidden_size",
    "num_attention_heads",
    "intermediate_size",
    "vocab_size",
    "max_position_embeddings",
)
_ROPE_NUMBERS = (
    "rope_theta",
    "factor",
    "attention_factor",
    "beta_fast",
    "beta_slow",
    "low_freq_factor",
    "high_freq_factor",
)
_LARGEST = 2**31


def their_name(name: str) -> str:
    """`layers.3.attention.query.weight` -> `model.layers.3.self_attn.q_proj.weight`."""
    owner, _, kind = name.rpartition(".")
    if owner in _OTHER_PARTS:
        return f"{_OTHER_PARTS[owner]}.{kind}"
    _, number, part = owner.split(".", 2)
    return f"model.layers.{number}.{_LAYER_PARTS[part]}.{kind}"


def read_spec(folder: Path) -> ModelSpec:
    """The shape of the model in a folder, or a refusal that names every key that does not fit."""
    path = folder / CONFIG_FILE
    if not path.exists():  # a pipe is refused by its reader, by what it is
        what = f"has no {CONFIG_FILE}. Give a folder that holds {CONFIG_FILE} and model.safetensors."
        raise ConfigError([Problem(str(folder), what)])
    config = read_table(path)
    problems = list(_misfits(path, config)) or list(_unusable(path, config))
    if problems:
        raise ConfigError(problems)
    max_seq_len = config["max_position_embeddings"]
    if config["model_type"] == "mistral" and config.get("sliding_window") is not None:
        max_seq_len = min(max_seq_len, config["sliding_window"])
    return ModelSpec(
        layers=config["num_hidden_layers"],
        width=config["hidden_size"],
        heads=config["num_attention_heads"],
        kv_heads=config.get("num_key_value_heads") or config["num_attention_heads"],
        head_dim=config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"],
        ffn=config["intermediate_size"],
        vocab=config["vocab_size"],
        max_seq_len=max_seq_len,
        qk_norm=config["model_type"] == "qwen3",
        tied_embeddings=bool(config.get("tie_word_embeddings", False)),
        init_std=config.get("initializer_range") or 0.02,
        norm_eps=config["rms_norm_eps"],
        rope=_read_rope(config),
    )


def read_table(path: Path) -> dict[str, Any]:
    """The table in a JSON file of a folder; ConfigError where it holds none, or is truncated."""
    try:
        config = read_json(path)
    except (OSError, ValueError) as reason:
        raise ConfigError([Problem(str(path), f"cannot be read: {reason}. Copy it again.")]) from None
    if not isinstance(config, dict):
        raise ConfigError([Problem(str(path), "is not a table of keys and values. Copy it again.")])
    return config


def write_config(folder: Path, spec: ModelSpec, rope: RopeSpec, seq_len: int) -> None:
    """A config.json with these rotary positions, for rows of up to `seq_len`."""
    family = "qwen3" if spec.qk_norm else "smollm3" if rope.dropped else "llama"
    config = {
        "architectures": [CLASSES[family]],
        "model_type": family,
        "hidden_size": spec.width,
        "num_hidden_layers": spec.layers,
        "num_attention_heads": spec.heads,
        "num_key_value_heads": spec.kv_heads,
        "head_dim": spec.head_dim,
        "intermediate_size": spec.ffn,
        "vocab_size": spec.vocab,
        "max_position_embeddings": seq_len,
        "rms_norm_eps": spec.norm_eps,
        "hidden_act": "silu",
        "attention_bias": False,
        "tie_word_embeddings": spec.tied_embeddings,
        "initializer_range": spec.init_std,
        "rope_theta": rope.theta,
        "rope_scaling": _written_rope(rope),
        "torch_dtype": "float32",
        **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id")),  # else 1 and 2, which are anybody's tokens
    }
    if family == "smollm3":
        config |= {"no_rope_layers": [int(layer not in rope.dropped) for layer in range(spec.layers)], **NO_WINDOW}
    (folder / CONFIG_FILE).write_text(json.dumps(config, indent=2) + "\n")


def _dropped(config: dict[str, Any]) -> tuple[int, ...]:
    """The layers of a SmolLM3 that have no rotary positions: its list has a 0 for each, or they are every nth."""
    if config["model_type"] != "smollm3":
        return ()
    layers = config.get("no_rope_layers")
    if layers:
        return tuple(number for number, rotates in enumerate(layers) if not rotates)
    every = config.get("no_rope_layer_interval") or 4
    return tuple(range(every - 1, config["num_hidden_layers"], every))


def _misfits(path: Path, config: dict[str, Any]) -> Iterator[Problem]:
    family = config.get("model_type")
    if family not in FAMILIES:
        what = f"model_type is {json.dumps(family)}. Known are {', '.join(FAMILIES)}."
        yield Problem(str(path), what)
        return
    for key, allowed in _WITHOUT_EFFECT.items():
        if config.get(key, allowed[0]) not in allowed:
            what = f"{key} is {json.dumps(config[key])}, which is not built; {json.dumps(allowed[0])} is."
            yield Problem(str(path), what)
    for key in ("rope_scaling", "rope_parameters"):
        if not isinstance(config.get(key), dict | None):
            yield Problem(str(path), f"{key} is {json.dumps(config[key])}. It must be a table, or null.")
    rope = _their_rope(config)
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in ("default", "linear", "yarn", "llama3"):
        what = f"rope_type is {json.dumps(kind)}, which is not built; default, linear, yarn and llama3 are."
        yield Problem(str(path), what)
    for key in ("mscale", "mscale_all_dim"):
        if rope.get(key) is not None:
            yield Problem(str(path), f"{key} of the rotary positions is {rope[key]}, which is not built.")
    if rope.get("truncate", True) is not True:
        yield Problem(str(path), "truncate of the rotary positions is false, which is not built.")


def _unusable(path: Path, config: dict[str, Any]) -> Iterator[Problem]:
    """Keys whose values no model can have."""
    rope = _their_rope(config)
    is_scaled = rope.get("rope_type", rope.get("type", "default")) != "default"
    checks: list[tuple[dict[str, Any], str, type, bool]] = [(config, key, int, True) for key in _SIZES]
    checks += [(config, key, int, False) for key in ("num_key_value_heads", "head_dim", "sliding_window")]
    checks += [(config, "rms_norm_eps", float, True), (config, "initializer_range", float, False)]
    checks += [(rope, key, float, is_scaled and key == "factor") for key in _ROPE_NUMBERS]
    checks.append((rope, "original_max_position_embeddings", int, False))
    checks.append((config, "no_rope_layer_interval", int, False))
    marks = config.get("no_rope_layers")
    if not (marks is None or (isinstance(marks, list) and all(mark in (0, 1) for mark in marks))):
        yield Problem(str(path), f"no_rope_layers is {json.dumps(marks)}. It must be a list of 0 and 1.")
    for table, key, kind, is_needed in checks:
        value = table.get(key)
        if value is None and not is_needed:
            continue
        kinds = (int,) if kind is int else (int, float)
        limit = MOST_LAYERS if key == "num_hidden_layers" else _LARGEST
        least = 1 if key == "rope_theta" else 0  # yarn divides by its logarithm
        if type(value) not in kinds or not least < (value or 0) < limit:
            noun = "a whole number" if kind is int else "a number"
            what = f"{key} is {json.dumps(value)}. It must be {noun} over {least}, and under {limit:,}."
            yield Problem(str(path), what)


def _their_rope(config: dict[str, Any]) -> dict[str, Any]:
    """Rotary keys in one place: `rope_parameters` since transformers 5, `rope_theta` and `rope_scaling` before."""
    found = {"rope_theta": config["rope_theta"]} if "rope_theta" in config else {}
    for key in ("rope_scaling", "rope_parameters"):
        if isinstance(config.get(key), dict):
            found |= config[key]
    return found


def _read_rope(config: dict[str, Any]) -> RopeSpec:
    theirs = _their_rope(config)
    theta = float(theirs.get("rope_theta") or DEFAULT_THETA)
    kind = theirs.get("rope_type", theirs.get("type", "default"))
    dropped = _dropped(config)
    if kind == "default":
        return RopeSpec(theta, dropped=dropped)
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
        dropped=dropped,
    )


def _written_rope(rope: RopeSpec) -> dict[str, Any] | None:
    if rope.scaling is None:
        return None
    if rope.scaling == "ntk-by-parts":  # yarn without its attention factor; they have no name for it
        rope = replace(rope, scaling="yarn", attention_factor=1.0)
    theirs = {"scaling": "rope_type", "theta": "rope_theta", "original_seq_len": "original_max_position_embeddings"}
    return {theirs.get(key, key): value for key, value in replace(rope, dropped=()).deciding().items()}

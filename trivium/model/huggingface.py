"""A Hugging Face folder's config.json <-> a model's shape; no framework.

`families/` has what each family's layers are, and its names of parameters. Whatever would change the model's answers
and is not known here is refused. A model is written as the simplest family that can express it.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trivium.errors import ConfigError, Problem
from trivium.files import read_json
from trivium.model.families.family import ACTIVATIONS, Family
from trivium.model.families.rope import NUMBERS, is_scaled, read_rope, rope_misfits, their_ropes, written_rope
from trivium.model.families.table import BY_NAME, family_of
from trivium.model.families.windows import layer_misfits, read_dropped, read_windows, written_windows
from trivium.model.spec import MOST_LAYERS, ModelSpec, RopeSpec

CONFIG_FILE = "config.json"

# Values under which a key has no effect; anything else would have to be built first.
_WITHOUT_EFFECT: dict[str, tuple[Any, ...]] = {
    "attention_bias": (False, None),
    "mlp_bias": (False, None),
    "partial_rotary_factor": (1.0, None),
    "quantization_config": (None,),
    "attention_dropout": (0.0, None),
    "use_bidirectional_attention": (False, None),
}
_SIZES = (
    "num_hidden_layers",
    "hidden_size",
    "num_attention_heads",
    "intermediate_size",
    "vocab_size",
    "max_position_embeddings",
)
_MAY_BE_ABSENT = ("num_key_value_heads", "head_dim", "sliding_window", "no_rope_layer_interval", "max_window_layers")
_NUMBERS = ("final_logit_softcapping", "attn_logit_softcapping", "query_pre_attn_scalar", "sliding_window_pattern")
_LARGEST = 2**31


def read_spec(folder: Path) -> ModelSpec:
    """The shape of the model in a folder, or a refusal that names every key that does not fit."""
    path = folder / CONFIG_FILE
    if not path.exists():  # a pipe is refused by its reader, by what it is
        what = f"has no {CONFIG_FILE}. Give a folder that holds {CONFIG_FILE} and model.safetensors."
        raise ConfigError([Problem(str(folder), what)])
    written = read_table(path)
    family = _family(path, written)
    config = dict(family.defaults) | written
    problems = list(_misfits(config, family)) or list(_unusable(config, family)) or list(layer_misfits(config, family))
    if problems:
        raise ConfigError([Problem(str(path), what) for what in problems])
    window, sliding = read_windows(config, family)
    return ModelSpec(
        layers=config["num_hidden_layers"],
        width=config["hidden_size"],
        heads=config["num_attention_heads"],
        kv_heads=config.get("num_key_value_heads") or config["num_attention_heads"],
        head_dim=_head_dim(config),
        ffn=config["intermediate_size"],
        vocab=config["vocab_size"],
        max_seq_len=config["max_position_embeddings"],
        tied_embeddings=bool(config.get("tie_word_embeddings", False)),
        init_std=config.get("initializer_range") or 0.02,
        norm_eps=config["rms_norm_eps"],
        rope=read_rope(config, family, sliding, read_dropped(config, family)),
        activation=_activations(family)[config.get(family.activation_key, "silu")],
        window=window,
        sliding=sliding,
        **dict(family.fixed),
        **_of_config(config, family),
    )


def read_family(folder: Path) -> Family:
    """The family of the model in a folder, which decides the names of its parameters."""
    path = folder / CONFIG_FILE
    return _family(path, read_table(path))


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
    family = family_of(spec, rope)
    config = {
        "architectures": [family.architecture],
        "model_type": family.name,
        "hidden_size": spec.width,
        "num_hidden_layers": spec.layers,
        "num_attention_heads": spec.heads,
        "num_key_value_heads": spec.kv_heads,
        "head_dim": spec.head_dim,
        "intermediate_size": spec.ffn,
        "vocab_size": spec.vocab,
        "max_position_embeddings": seq_len,
        "rms_norm_eps": spec.norm_eps,
        family.activation_key: ACTIVATIONS[spec.activation],
        "attention_bias": False,
        "tie_word_embeddings": spec.tied_embeddings,
        "initializer_range": spec.init_std,
        **written_rope(rope, family),
        "torch_dtype": "float32",
        **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id")),  # else 1 and 2, which are anybody's tokens
        **written_windows(spec, rope, family),
        **{theirs: _written(key, spec) for key, theirs in family.config.items()},
    }
    (folder / CONFIG_FILE).write_text(json.dumps(config, indent=2) + "\n")


def _family(path: Path, config: dict[str, Any]) -> Family:
    name = config.get("model_type")
    if isinstance(name, str) and name in BY_NAME:
        return BY_NAME[name]
    what = f"model_type is {json.dumps(name)}. Known are {', '.join(BY_NAME)}."
    if isinstance(config.get("text_config"), dict):
        inner = json.dumps(config["text_config"].get("model_type"))
        what = f"model_type is {json.dumps(name)}, a model of more than text. Save its text model ({inner}) by itself."
    raise ConfigError([Problem(str(path), what)])


def _head_dim(config: dict[str, Any]) -> int:
    head_dim: int = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    return head_dim


def _activations(family: Family) -> dict[str, Any]:
    """Theirs -> ours."""
    return {theirs: ours for ours, theirs in ACTIVATIONS.items() if family.has_xielu or ours != "xielu"}


def _of_config(config: dict[str, Any], family: Family) -> dict[str, Any]:
    """The fields that a family's config decides by numbers."""
    found: dict[str, Any] = {key: config.get(theirs) for key, theirs in family.config.items()}
    if found.get("attention_scale") is not None:
        scalar = found["attention_scale"]
        found["attention_scale"] = None if scalar == _head_dim(config) else scalar**-0.5
    return found | ({"embedding_scale": config["hidden_size"] ** 0.5} if family.is_gemma else {})


def _written(key: str, spec: ModelSpec) -> Any:
    if key != "attention_scale":
        return getattr(spec, key)
    return spec.head_dim if spec.attention_scale is None else round(spec.attention_scale**-2)


def _misfits(config: dict[str, Any], family: Family) -> Iterator[str]:
    act, known = config.get(family.activation_key, "silu"), list(_activations(family))
    if act not in known:
        shown = f"{', '.join(known[:-1])} and {known[-1]} are"
        yield f"{family.activation_key} is {json.dumps(act)}, which is not built; {shown}."
    unmoved = {"attn_logit_softcapping": (None,)} if "attention_softcap" not in family.config else {}
    windows = {"use_sliding_window": (False, None)} if family.windows == "none" else {}
    for key, allowed in (_WITHOUT_EFFECT | unmoved | windows).items():
        if config.get(key, allowed[0]) not in allowed:
            yield f"{key} is {json.dumps(config[key])}, which is not built; {json.dumps(allowed[0])} is."
    yield from rope_misfits(config, family)


def _unusable(config: dict[str, Any], family: Family) -> Iterator[str]:
    """Keys whose values no model can have."""
    checks: list[tuple[dict[str, Any], str, type, bool]] = [(config, key, int, True) for key in _SIZES]
    checks += [(config, key, int, False) for key in _MAY_BE_ABSENT]
    checks += [(config, "rms_norm_eps", float, True), (config, "initializer_range", float, False)]
    checks += [(config, key, float, False) for key in _NUMBERS]
    for rope in their_ropes(config, family).values():
        checks += [(rope, key, float, is_scaled(rope) and key == "factor") for key in NUMBERS]
        checks.append((rope, "original_max_position_embeddings", int, False))
    for table, key, kind, is_needed in checks:
        value = table.get(key)
        if value is None and not is_needed:
            continue
        kinds = (int,) if kind is int else (int, float)
        limit = MOST_LAYERS if key == "num_hidden_layers" else _LARGEST
        least = 1 if key == "rope_theta" else 0  # yarn divides by its logarithm
        if type(value) not in kinds or not least < (value or 0) < limit:
            noun = "a whole number" if kind is int else "a number"
            yield f"{key} is {json.dumps(value)}. It must be {noun} over {least}, and under {limit:,}."

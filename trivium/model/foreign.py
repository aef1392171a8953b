"""A config of the package transformers, or keys of `[model]` -> a model's shape; and back, as config.json.

Any causal language model of transformers is known by its `model_type`. Its own config class reads the keys and writes
out all defaults, so that another version's defaults do not change a model that was begun. transformers is imported
here when it is asked for, which takes seconds; nothing of a folder is ever run (no remote code), and files of weights
are read elsewhere. What the engine counts on the model (parameters, FLOPs) is not known here.
"""

import json
import warnings
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from trivium.errors import ConfigError, Problem
from trivium.model.huggingface import CONFIG_FILE, read_table
from trivium.model.spec import DEFAULT_THETA, MOST_LAYERS, ForeignSpec, ModelSpec, RopeSpec

KEYS = {  # of [model], by transformers' names
    "layers": "num_hidden_layers",
    "width": "hidden_size",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "ffn": "intermediate_size",
    "vocab": "vocab_size",
    "max_seq_len": "max_position_embeddings",
    "tied_embeddings": "tie_word_embeddings",
    "init_std": "initializer_range",
    "norm_eps": "rms_norm_eps",
}
# Keys that decide neither shapes nor what weights mean: limits, tokens' numbers, how it is run.
UNDECISIVE = {
    *("max_position_embeddings", "bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "dtype", "use_cache"),
    *("architectures", "transformers_version", "output_hidden_states", "output_attentions", "output_router_logits"),
    *("return_dict", "id2label", "label2id", "problem_type", "chunk_size_feed_forward", "is_encoder_decoder"),
    *("rope_parameters", "rope_theta", "rope_scaling"),
}
OF_TRAINING = {"initializer_range", "router_aux_loss_coef"}  # first values and objective: no part of what weights mean
LARGEST = 2**31
LONGEST_TEXT = 1_000_000  # characters of a config
LEFT_OUT = ("transformers_version", "architectures", "auto_map", "_name_or_path", "quantization_config")


def refuse_missing(where: str) -> None:
    """transformers comes with an extra of its own."""
    if find_spec("transformers") is None:
        what = "needs the package transformers, which is not installed. Get the extra: pip install 'trivium[hf]'"
        raise ConfigError([Problem(where, what)])


def families() -> list[str]:
    """The families that transformers has causal language models of."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def folder_spec(folder: Path, options: Mapping[str, Any] = {}) -> ModelSpec:
    """The shape of the model in a Hugging Face folder, with other values of some of its config's keys."""
    return table_spec(read_table(folder / CONFIG_FILE), str(folder / CONFIG_FILE), options)


def table_spec(table: Mapping[str, Any], where: str, options: Mapping[str, Any] = {}) -> ModelSpec:
    """The shape that the content of a config.json describes."""
    refuse_missing(where)
    problems = list(_refused(table, where))
    if problems:
        raise ConfigError(problems)
    return _made(table["model_type"], {**table, **options}, where)


def keys_spec(
    family: str, keys: Mapping[str, Any], options: Mapping[str, Any], optional: Collection[str] = ()
) -> ModelSpec:
    """The shape that keys of `[model]` describe, with the family's own defaults of all others.

    Keys that are `optional` are left out where the family does not have them; others are refused then.
    """
    refuse_missing("model.family")
    from transformers import CONFIG_MAPPING

    problems = list(_refused({"model_type": family}, "model.family"))
    if problems:
        raise ConfigError(problems)
    plain = CONFIG_MAPPING[family]()
    # A head's width is read by models whose configs do not list it.
    known = {key: KEYS[key] for key in keys if key == "head_dim" or hasattr(plain, KEYS[key])}
    problems = [
        Problem(f"model.{key}", f'is given, but the family "{family}" has no {KEYS[key]}. Leave it out.')
        for key in keys
        if key not in known and key not in optional
    ]
    problems += [
        Problem(f"model.options.{key}", f'is not a key of the family "{family}". Leave it out.')
        for key in options
        if not hasattr(plain, key)
    ]
    if problems:
        raise ConfigError(problems)
    # The numbers of tokens that a family's defaults name are anybody's in another vocabulary.
    tokens = ("bos_token_id", "eos_token_id", "pad_token_id")
    no_tokens = {key: None for key in tokens if _may_be_absent(CONFIG_MAPPING[family], key)}
    table = {**no_tokens, **{known[key]: value for key, value in keys.items() if key in known}, **options}
    return _made(family, table, "model")


def _may_be_absent(config: type, key: str) -> bool:
    """Whether a config's key may be None."""
    try:
        config(**{key: None})
    except Exception:  # its own check's
        return False
    return True


def _refused(table: Mapping[str, Any], where: str) -> Iterator[Problem]:
    """Configs that are not of a causal language model of transformers, by the keys alone."""
    family = table.get("model_type")
    if family not in families():
        what = f"{json.dumps(family)} is not a family of causal language models that transformers has"
        yield Problem(where, f'{what}. Write one of its model_types, such as "olmo3".')
    if table.get("quantization_config") is not None:
        yield Problem(where, "has a quantization_config, and weights are trained in float32. Give the original model.")
    if table.get("is_encoder_decoder"):
        yield Problem(where, "describes an encoder and a decoder; only decoders are trained here.")
    others = [key for key in ("vision_config", "audio_config") if table.get(key) is not None]
    if others:
        instead = 'Write its text part\'s own model_type, such as "gemma3_text".'
        yield Problem(
            where, f"has {', '.join(others)}: it reads more than text, and only text is trained here. {instead}"
        )


def _made(family: str, table: Mapping[str, Any], where: str) -> ModelSpec:
    """The spec of what transformers' own class makes of a table, which it may refuse."""
    from transformers import CONFIG_MAPPING

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of keys under older names, which it reads
            made = CONFIG_MAPPING[family](**{key: value for key, value in table.items() if key not in LEFT_OUT})
        plain = {key: value for key, value in made.to_dict().items() if key not in LEFT_OUT}
        sizes: dict[str, Any] = {key: getattr(made, name, None) for key, name in KEYS.items()}
    except Exception as error:  # whatever a family's own checks raise, the config is what it is about
        what = f"is not a config that transformers takes: {_first_line(error)}. Change it."
        raise ConfigError([Problem(where, what)]) from error
    problems = list(_unusable(sizes, plain, where))
    if problems:
        raise ConfigError(problems)
    heads = sizes["heads"]
    return ModelSpec(
        layers=sizes["layers"],
        width=sizes["width"],
        heads=heads,
        kv_heads=_number(sizes["kv_heads"]) or heads,
        head_dim=_number(sizes["head_dim"]) or max(2, sizes["width"] // heads),
        ffn=_number(sizes["ffn"]) or 4 * sizes["width"],
        vocab=sizes["vocab"],
        max_seq_len=_number(sizes["max_seq_len"]) or LARGEST - 1,
        tied_embeddings=bool(sizes["tied_embeddings"]),
        init_std=float(sizes["init_std"] or 0.02),
        norm_eps=float(sizes["norm_eps"] or 1e-6),
        rope=read_rope(plain),
        logit_softcap=_number(plain.get("final_logit_softcapping")),
        logit_scale=_logit_scale(plain),
        foreign=ForeignSpec(family, json.dumps(plain, sort_keys=True)),
    )


def _logit_scale(table: Mapping[str, Any]) -> float:
    """What logits are multiplied by; Granite divides. The engine compares with what the model itself does."""
    scale, divisor = _number(table.get("logit_scale")), _number(table.get("logits_scaling"))
    return (1.0 if scale is None else float(scale)) / (divisor or 1.0)


def _unusable(sizes: Mapping[str, Any], table: Mapping[str, Any], where: str) -> Iterator[Problem]:
    for key in ("layers", "width", "heads", "vocab"):
        most = MOST_LAYERS if key == "layers" else LARGEST
        if type(sizes[key]) is not int or not 0 < sizes[key] < most:
            what = f"{KEYS[key]} is {json.dumps(sizes[key], default=str)}"
            yield Problem(where, f"{what}. It must be a whole number over 0, and under {most:,}.")
    if len(json.dumps(table)) > LONGEST_TEXT:
        yield Problem(where, f"is longer than {LONGEST_TEXT:,} characters, which no model's config is.")
    noise = {key: value for key, value in table.items() if _is_noise(key) and _number(value)}
    for key, value in sorted(noise.items()):
        what = f"{key} is {value}, and a model is trained without dropout and noise here"
        yield Problem(where, f"{what}. Write model.options = {{ {key} = 0.0 }}.")


def _is_noise(key: str) -> bool:
    return any(part in key for part in ("dropout", "pdrop", "jitter", "layerdrop")) and "classifier" not in key


def _number(value: Any) -> Any:
    return value if isinstance(value, int | float) and not isinstance(value, bool) and value else None


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines)[:300].rstrip(".") or type(error).__name__


def read_rope(table: Mapping[str, Any]) -> RopeSpec:
    """The rotary positions of a config as far as our words go; of layers that see whole rows, where kinds differ."""
    found = table.get("rope_parameters")
    found = found if isinstance(found, dict) else {}
    by_kind = _by_kind(found)
    found = (found.get("full_attention") or {}) if by_kind else found
    theta = _number(found.get("rope_theta")) or DEFAULT_THETA
    kind = found.get("rope_type", "default")
    if kind not in ("linear", "yarn", "llama3"):
        return RopeSpec(float(theta))
    plain = RopeSpec()
    return RopeSpec(
        theta=float(theta),
        scaling=kind,
        factor=float(found.get("factor") or 1.0),
        original_seq_len=int(
            found.get("original_max_position_embeddings") or table.get("max_position_embeddings") or 0
        ),
        attention_factor=found.get("attention_factor"),
        beta_fast=float(found.get("beta_fast") or plain.beta_fast),
        beta_slow=float(found.get("beta_slow") or plain.beta_slow),
        low_freq_factor=float(found.get("low_freq_factor") or plain.low_freq_factor),
        high_freq_factor=float(found.get("high_freq_factor") or plain.high_freq_factor),
    )


def _by_kind(parameters: Mapping[str, Any]) -> bool:
    """Whether rotary positions are given for each kind of layer."""
    return bool(parameters) and all(value is None or isinstance(value, dict) for value in parameters.values())


def with_rope(spec: ModelSpec, rope: RopeSpec, seq_len: int | None = None, where: str = "rope") -> ModelSpec:
    """The spec with other rotary positions, of a foreign one in its config too; ConfigError where it has none to set.

    Where kinds of layers have their own, those of layers that see whole rows become these, and sliding layers keep
    theirs.
    """
    foreign = spec.foreign
    if foreign is None:
        return replace(spec, rope=rope)
    changed: dict[str, Any] = {}
    if seq_len is not None and "max_position_embeddings" in foreign.table:
        changed["max_position_embeddings"] = seq_len
    if rope != spec.rope:
        parameters = foreign.table.get("rope_parameters")
        if not isinstance(parameters, dict) or not parameters or rope.dropped:
            what = f'cannot be set: the family "{foreign.family}" has no rope_parameters'
            if rope.dropped:
                what = f'has drop_layers, which the family "{foreign.family}" cannot do'
            raise ConfigError([Problem(where, f"{what}. Leave it out.")])
        changed["rope_parameters"] = rope_parameters(parameters, rope)
    return replace(spec, rope=rope, foreign=foreign.changed(**changed)) if changed else spec


def rope_parameters(before: Mapping[str, Any], rope: RopeSpec) -> dict[str, Any]:
    """A config's rope_parameters with other rotary positions."""
    if not _by_kind(before):
        return _written(before, rope)
    table = {**before, "full_attention": _written(before.get("full_attention") or {}, rope)}
    if rope.sliding is not None and "sliding_attention" in before:
        table["sliding_attention"] = _written(before["sliding_attention"] or {}, rope.sliding)
    return table


def _written(before: Mapping[str, Any], rope: RopeSpec) -> dict[str, Any]:
    """One table of rope_parameters; what has nothing to do with scaling (a part of a head that rotates) stays."""
    kept = {key: value for key, value in before.items() if key in ("partial_rotary_factor",)}
    if rope.scaling == "ntk-by-parts":  # yarn without its attention factor; they have no name for it
        rope = replace(rope, scaling="yarn", attention_factor=1.0)
    names = {"scaling": "rope_type", "theta": "rope_theta", "original_seq_len": "original_max_position_embeddings"}
    theirs = {names.get(key, key): value for key, value in replace(rope, dropped=(), sliding=None).deciding().items()}
    return kept | {"rope_type": "default"} | theirs


def with_layers(spec: ModelSpec, layers: int) -> ModelSpec:
    """The model's first layers alone; nothing that was counted is true of it."""
    foreign = spec.foreign
    assert foreign is not None
    lists = {key: value[:layers] for key, value in layer_lists(spec).items()}
    return replace(spec, layers=layers, foreign=foreign.changed(**lists, **{_own_key(foreign, "layers"): layers}))


def with_vocab(spec: ModelSpec, vocab: int) -> ModelSpec:
    """The spec with another vocabulary, of a foreign one in its config too; what was counted follows."""
    foreign = spec.foreign
    if foreign is None or vocab == spec.vocab:
        return replace(spec, vocab=vocab)
    if foreign.parameters:
        new = (vocab - spec.vocab) * spec.width
        parameters = foreign.parameters + (1 if spec.tied_embeddings else 2) * new
        foreign = replace(foreign, parameters=parameters, token_weights=foreign.token_weights + new)
    return replace(spec, vocab=vocab, foreign=foreign.changed(**{_own_key(foreign, "vocab"): vocab}))


def _own_key(foreign: ForeignSpec, key: str) -> str:
    """What a family's config calls a key of `[model]`."""
    from transformers import CONFIG_MAPPING

    return CONFIG_MAPPING[foreign.family].attribute_map.get(KEYS[key], KEYS[key])


def layer_lists(spec: ModelSpec) -> dict[str, list[Any]]:
    """The config's lists that have an entry for every layer."""
    assert spec.foreign is not None
    table = spec.foreign.table
    return {key: value for key, value in table.items() if isinstance(value, list) and len(value) == spec.layers}


def deciding(foreign: ForeignSpec, *, training: bool = False) -> dict[str, Any]:
    """The config's keys that decide what weights mean, and with `training` how they begin and are trained."""
    apart = UNDECISIVE if training else UNDECISIVE | OF_TRAINING
    return {key: value for key, value in foreign.table.items() if key not in apart}


def differing(one: ForeignSpec, other: ForeignSpec) -> dict[str, tuple[Any, Any]]:
    """Keys in which two models differ; one that only one of them has came with another version of transformers."""
    if one.family != other.family:
        return {"family": (one.family, other.family)}
    theirs, ours = deciding(one), deciding(other)
    both = [key for key in theirs if key in ours]
    names = {_own_key(one, "vocab"): "vocab"}
    return {names.get(key, f"config.{key}"): (theirs[key], ours[key]) for key in both if theirs[key] != ours[key]}


def write_config(folder: Path, spec: ModelSpec, rope: RopeSpec, seq_len: int, architecture: str) -> None:
    """A config.json that transformers reads, with these rotary positions, for rows of up to `seq_len`."""
    longest = max(seq_len, spec.max_seq_len)
    made = with_rope(spec, rope, longest)
    assert made.foreign is not None
    table = {**made.foreign.table, "architectures": [architecture], "dtype": "float32"}
    (folder / CONFIG_FILE).write_text(json.dumps(table, indent=2, sort_keys=True) + "\n")

"""A folder that holds a model -> its shape: one that an engine saved (engine.json), or a Hugging Face one."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, get_args

from trivium.errors import ResumeError
from trivium.files import read_json
from trivium.model import huggingface
from trivium.model.families.table import BY_NAME
from trivium.model.foreign import differing, folder_spec, table_spec
from trivium.model.spec import MOST_LAYERS, Activation, ModelSpec, NormPlace, Scaling

SPEC_FILE = "engine.json"
TORCH_INDEX = "tensors.json"

# What decides the weights' shapes and meaning. Row length and rotary positions are the stages' own, and may
# change in the future of a run.
SIZE_KEYS = ("layers", "width", "heads", "kv_heads", "head_dim", "ffn", "vocab")
_YES_OR_NO = ("qk_norm", "qk_norm_joint", "qkv_bias", "gated", "tied_embeddings")
_WORDS = {"scaling": (None, *get_args(Scaling)), "norm": get_args(NormPlace), "activation": get_args(Activation)}
_CAPS = ("attention_softcap", "logit_softcap")
_MAY_BE_ABSENT = ("attention_factor", "own", "own_parameters", "rotary_dim", "window", "attention_scale", *_CAPS)
SHAPE_KEYS = (*SIZE_KEYS, "qk_norm", "tied_embeddings", "norm_eps")
FORM_KEYS = (  # in which layers may differ from Llama's
    *("qk_norm_joint", "qkv_bias", "gated", "norm", "activation", "rotary_dim", "window", "sliding"),
    *("attention_scale", "logit_scale", "embedding_scale", *_CAPS),
)
OWN_FAMILY = "trivium"  # the decoder's name beside transformers' families
SHOWN = 3  # parameters that a refusal names


def is_saved(folder: Path) -> bool:
    return (folder / SPEC_FILE).is_file()


def saved_by(folder: Path) -> Literal["torch", "jax"]:
    """The engine that wrote a saved folder, by the files that it leaves."""
    return "torch" if (folder / TORCH_INDEX).is_file() else "jax"


def write_spec(folder: Path, spec: ModelSpec) -> None:
    """Leave the shape beside the weights."""
    (folder / SPEC_FILE).write_text(json.dumps(asdict(spec), indent=2) + "\n")


def read_spec(folder: Path, *, foreign: bool = False) -> ModelSpec:
    """The shape of the model in a folder of either kind.

    A Hugging Face folder of a family that the decoder has is the decoder's, unless `foreign` asks for transformers'
    own model; one of any other family is transformers'.
    """
    if not is_saved(folder):
        return folder_spec(folder) if foreign or is_foreign(folder) else huggingface.read_spec(folder)
    try:
        raw = read_json(folder / SPEC_FILE)
        spec = ModelSpec.of(raw | {"rope": raw["rope"] | _first_form(raw)})
        _refuse_unusable(spec)
        return spec
    except (ValueError, KeyError, TypeError):
        what = "is corrupt: truncated, or changed since it was written. Put it back."
        raise ResumeError(f"{folder / SPEC_FILE}: {what}") from None


def is_foreign(folder: Path) -> bool:
    """Whether a Hugging Face folder's family is not one that the decoder has."""
    path = folder / huggingface.CONFIG_FILE
    table = huggingface.read_table(path) if path.exists() else {}
    family = table.get("model_type")
    has_more = isinstance(table.get("text_config"), dict)  # than text: refused with the name of its text model
    return isinstance(family, str) and family not in BY_NAME and not has_more


def _first_form(raw: dict[str, Any]) -> dict[str, Any]:
    """Layers without rotary positions as the first form of the file has them, every nth, which is taken out of it."""
    every = raw.pop("no_rope_every", None)
    return {} if every is None else {"dropped": tuple(range(every - 1, raw["layers"], every))}


def _refuse_unusable(spec: ModelSpec) -> None:
    """ValueError where a value of a shape is not one that a model can have."""
    tables = [asdict(spec), asdict(spec.rope), {} if spec.rope.sliding is None else asdict(spec.rope.sliding)]
    for key, value in [item for table in tables for item in table.items()]:
        if key not in ("rope", "sliding", "foreign") and not _is_usable(
            key, value
        ):  # tables, whose own keys are checked
            raise ValueError(f"{key} is {value!r}")
    if spec.foreign is not None:
        table_spec(spec.foreign.table, SPEC_FILE)
    if not _is_usable("dropped", spec.sliding) or (spec.sliding and spec.window is None):
        raise ValueError(f"sliding is {spec.sliding!r}")


def _is_usable(key: str, value: Any) -> bool:
    if key in _WORDS:
        return value in _WORDS[key]
    if key == "dropped":
        return all(type(layer) is int and 0 <= layer < MOST_LAYERS for layer in value)
    if value is None:
        return key in _MAY_BE_ABSENT
    if key == "own":
        return isinstance(value, str)
    if key in _YES_OR_NO:
        return isinstance(value, bool)
    is_whole = key in (*SIZE_KEYS, "max_seq_len", "original_seq_len", "rotary_dim", "window", "own_parameters")
    least = 0 if key in ("original_seq_len", "init_std") else 1 + 1e-9 if key == "theta" else 1e-30
    most = {"layers": MOST_LAYERS, "own_parameters": 2**53}.get(key, 2**31 - 1)
    return type(value) in ((int,) if is_whole else (int, float)) and least <= value <= most


def refuse_other_model(folder: Path, spec: ModelSpec) -> None:
    """A folder's weights must have the shape and meaning of this model's."""
    theirs = read_spec(folder, foreign=spec.foreign is not None)
    if theirs.own != spec.own:
        raise ResumeError(f"{folder}: {_other_maker(theirs.own, spec.own)}")
    other = [f"{key} was {was} and is now {now}" for key, (was, now) in other_shape(theirs, spec).items()]
    if other:
        raise ResumeError(f"{folder}: holds another model: {', '.join(other)}. Put it back, or start a new run.")


def refuse_other_parameters(
    folder: Path, theirs: Mapping[str, Sequence[int]], ours: Mapping[str, Sequence[int]]
) -> None:
    """A model's parameters are read by name: none may be missing, left over or of another shape."""
    other = [
        f"{name} was {_shape(theirs.get(name))} and is now {_shape(ours.get(name))}"
        for name in sorted(theirs.keys() | ours.keys())
        if _shape(theirs.get(name)) != _shape(ours.get(name))
    ]
    if other:
        more = f", and {len(other) - SHOWN} more" if len(other) > SHOWN else ""
        what = f"holds other parameters: {', '.join(other[:SHOWN])}{more}"
        raise ResumeError(f"{folder}: {what}. Put the model back, or start a new run.")


def _shape(sizes: Sequence[int] | None) -> str:
    return "absent" if sizes is None else " x ".join(map(str, sizes))


def _other_maker(theirs: str | None, ours: str | None) -> str:
    """Why weights of a model that a Trainer's own function made fit no other model, and what to do."""
    here = "model.family" if ":" in (ours or "") else "Trainer.model()"
    if theirs is None:
        return f"holds a decoder, but {here} is {ours} here. Give a checkpoint of that model."
    if ours is not None:
        return f"holds a model that {theirs} made, but {here} is {ours} here. Put the function back."
    if ":" in theirs:
        return f'holds a model that {theirs} made. Write model.family = "{theirs}".'
    return (
        f"holds a model that a Trainer's own function made ({theirs}), which this command does not have. Use that "
        'Trainer in Python: MyTrainer("run.toml").sample("a prompt"), or its open_model() and run().'
    )


def refuse_other_engine(folder: Path, engine: Literal["torch", "jax"]) -> None:
    """What an engine saved it reads itself; another takes the weights through the Hugging Face form."""
    theirs = saved_by(folder)
    if theirs != engine:
        raise ResumeError(
            f"{folder}: was saved by the {theirs} engine. Put engine.name back, or fork the run: a fork continues "
            f"with the weights and a fresh optimizer. As a reference give what trivium export makes of it."
        )


def other_shape(one: ModelSpec, other: ModelSpec) -> dict[str, tuple[Any, Any]]:
    """Keys in which two models' weights differ in shape or meaning, with both values."""
    if one.foreign is not None and other.foreign is not None:
        return differing(one.foreign, other.foreign)
    if one.foreign is not None or other.foreign is not None:
        families = [OWN_FAMILY if spec.foreign is None else spec.foreign.family for spec in (one, other)]
        return {"family": (families[0], families[1])}
    both = {key: (getattr(one, key), getattr(other, key)) for key in (*SHAPE_KEYS, *FORM_KEYS)}
    return {key: values for key, values in both.items() if values[0] != values[1]}

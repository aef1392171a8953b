"""A folder that holds a model -> its shape: one that an engine saved (engine.json), or a Hugging Face one."""

import json
from dataclasses import asdict
from pathlib import Path

from trivium.engine import huggingface
from trivium.engine.spec import ModelSpec, RopeSpec
from trivium.errors import ResumeError

SPEC_FILE = "engine.json"

# What decides the weights' shapes and meaning. Row length and rotary positions are the stages' own, and may
# change in the future of a run.
SHAPE_KEYS = (
    "layers",
    "width",
    "heads",
    "kv_heads",
    "head_dim",
    "ffn",
    "vocab",
    "qk_norm",
    "tied_embeddings",
    "norm_eps",
)


def is_saved(folder: Path) -> bool:
    """Whether an engine wrote this folder."""
    return (folder / SPEC_FILE).is_file()


def write_spec(folder: Path, spec: ModelSpec) -> None:
    """Leave the shape beside the weights."""
    (folder / SPEC_FILE).write_text(json.dumps(asdict(spec), indent=2) + "\n")


def read_spec(folder: Path) -> ModelSpec:
    """The shape of the model in a folder of either kind."""
    if not is_saved(folder):
        return huggingface.read_spec(folder)
    said = json.loads((folder / SPEC_FILE).read_text())
    return ModelSpec(**said | {"rope": RopeSpec(**said["rope"])})


def refuse_other_model(folder: Path, spec: ModelSpec) -> None:
    """A folder's weights must have the shape and meaning of this model's."""
    theirs = read_spec(folder)
    other = [f"{key} was {getattr(theirs, key)} and is now {getattr(spec, key)}" for key in other_shape(theirs, spec)]
    if other:
        raise ResumeError(f"{folder}: holds another model: {', '.join(other)}. Put it back, or start a new run.")


def other_shape(one: ModelSpec, other: ModelSpec) -> list[str]:
    """Keys in which two models' weights differ in shape or meaning."""
    return [key for key in SHAPE_KEYS if getattr(one, key) != getattr(other, key)]

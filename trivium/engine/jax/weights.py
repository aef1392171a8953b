"""A folder of either kind -> a model's weights, each part on its device."""

from collections.abc import Mapping
from pathlib import Path

import jax
from jax import Array

from trivium.engine.jax import huggingface
from trivium.engine.jax.state import WEIGHTS, read_state, saved_shapes
from trivium.model.folder import is_saved, refuse_other_model
from trivium.model.spec import ModelSpec


def read_weights(folder: Path, target: Mapping[str, jax.ShapeDtypeStruct], spec: ModelSpec) -> dict[str, Array]:
    """The weights alone, from what this engine saved or from a Hugging Face folder; another model is refused.

    The target has each one's shape, type and place; they are converted to that type.
    """
    if is_saved(folder):
        saved_shapes(folder, spec)  # refuses another model's, and another engine's
        return read_state(folder, {WEIGHTS: target})[WEIGHTS]
    refuse_other_model(folder, spec)
    return huggingface.read_weights(folder, target, spec)

"""A folder of either kind -> a model's weights, each part on its device."""

from collections.abc import Mapping
from pathlib import Path

import jax
import numpy as np
from jax import Array
from numpy.typing import NDArray

from trivium.engine.jax import huggingface
from trivium.engine.jax.state import WEIGHTS, read_state, saved_shapes
from trivium.model.folder import is_saved, refuse_other_model, refuse_other_parameters
from trivium.model.spec import ModelSpec


def key_words(key: int) -> NDArray[np.uint32]:
    """64 bits as the two words of a key."""
    return np.array([key >> 32, key & 0xFFFFFFFF], np.uint32)


def read_weights(folder: Path, target: Mapping[str, jax.ShapeDtypeStruct], spec: ModelSpec) -> dict[str, Array]:
    """The weights alone, from what this engine saved or from a Hugging Face folder; another model is refused.

    The target has each one's shape, type and place; they are converted to that type.
    """
    if is_saved(folder):
        saved = saved_shapes(folder, spec)  # refuses another model's, and another engine's
        refuse_other_parameters(folder, saved[WEIGHTS], {name: room.shape for name, room in target.items()})
        return read_state(folder, {WEIGHTS: target})[WEIGHTS]
    refuse_other_model(folder, spec)
    return huggingface.read_weights(folder, target, spec)

"""A seed or a folder of either kind -> a model's weights, each part on its device.

Every parameter is drawn from a key of its own, made of the seed and the parameter's name: the same weights on any
layout, whatever the order in which they are made. They are other numbers than the torch engine draws.
"""

from collections.abc import Mapping
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from trivium.engine.jax import huggingface
from trivium.engine.jax.state import WEIGHTS, read_state, saved_shapes
from trivium.engine.parameters import drawn_rows, init_std
from trivium.model.folder import is_saved, refuse_other_model, refuse_other_parameters
from trivium.model.spec import ModelSpec


def init_weight(name: str, shape: tuple[int, ...], spec: ModelSpec, words: Array) -> Array:
    """Biases are zeros, norms ones; matrices normal, narrower where 2 * layers of them add up in the stream."""
    if len(shape) < 2:
        return jnp.zeros(shape) if name.endswith("bias") else jnp.ones(shape)
    weight = init_std(name, spec) * jax.random.normal(jax.random.wrap_key_data(words), shape)
    drawn = drawn_rows(name, shape[0], spec)
    if drawn < shape[0]:
        weight = jnp.where(jnp.arange(shape[0])[:, None] < drawn, weight, 0)
    return weight


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

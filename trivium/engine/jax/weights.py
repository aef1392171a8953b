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
from trivium.engine.parameters import init_std
from trivium.model.folder import is_saved, refuse_other_model
from trivium.model.spec import ModelSpec


def init_weight(name: str, shape: tuple[int, ...], spec: ModelSpec, words: Array) -> Array:
    """Norms are ones; matrices normal, narrower where 2 * layers of them add up in the residual stream."""
    if len(shape) == 1:
        return jnp.ones(shape)
    weight = init_std(name, spec) * jax.random.normal(jax.random.wrap_key_data(words), shape)
    if "embedding" in name:
        weight = jnp.where(jnp.arange(shape[0])[:, None] < spec.vocab, weight, 0)
    return weight


def key_words(key: int) -> NDArray[np.uint32]:
    """64 bits as the two words of a key."""
    return np.array([key >> 32, key & 0xFFFFFFFF], np.uint32)


def read_weights(folder: Path, target: Mapping[str, jax.ShapeDtypeStruct], spec: ModelSpec) -> dict[str, Array]:
    """The weights alone, from what this engine saved or from a Hugging Face folder; another model is refused.

    The target has each one's shape, type and place; they are converted to that type.
    """
    if is_saved(folder):
        saved_shapes(folder, spec)  # refuses another model's, and another engine's
        return read_state(folder, {WEIGHTS: target})[WEIGHTS]
    refuse_other_model(folder, spec)
    return huggingface.read_weights(folder, target, spec)

"""Seed and names -> initial weights.

Every parameter is drawn from a key of its own, made of the seed and the parameter's name: the same weights on any
layout, whatever the order in which they are made. They are other numbers than the torch engine draws.
"""

import jax
import jax.numpy as jnp
from jax import Array

from trivium.data.order import derive_key
from trivium.engine.parameters import initial_std
from trivium.engine.spec import ModelSpec


def initial_weight(name: str, shape: tuple[int, ...], spec: ModelSpec, seed: int) -> Array:
    """Norms are ones; matrices normal, narrower where 2 * layers of them add up in the residual stream."""
    if len(shape) == 1:
        return jnp.ones(shape)
    key = jax.random.wrap_key_data(_words(derive_key(seed, "init", name)))
    weight = initial_std(name, spec) * jax.random.normal(key, shape)
    if "embedding" in name:
        weight = jnp.where(jnp.arange(shape[0])[:, None] < spec.vocab, weight, 0)
    return weight


def _words(key: int) -> Array:
    """64 bits as the two words of a key."""
    return jnp.array([key >> 32, key & 0xFFFFFFFF], dtype=jnp.uint32)

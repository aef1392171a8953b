"""Values -> the same below a limit c, by c tanh(x / c): attention's scores, and logits."""

import jax.numpy as jnp
from jax import Array


def capped(values: Array, limit: float | None) -> Array:
    """The values as they are where there is no limit."""
    return values if limit is None else limit * jnp.tanh(values / limit)


def times_slope(gradient: Array, found: Array, limit: float | None) -> Array:
    """A gradient by capped values -> by the values themselves.

    Slots and tokens that are masked have a value far below the limit, and a slope of zero.
    """
    return gradient if limit is None else gradient * (1 - jnp.square(jnp.clip(found / limit, -1, 1)))

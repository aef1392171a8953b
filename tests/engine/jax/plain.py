"""Attention by its formula, and rows to try it on."""

import jax.numpy as jnp
import numpy as np
from jax import Array, nn

from trivium.engine.jax.attention import EVERYTHING
from trivium.model.spec import AttentionSpec

LENGTHS = ((30, 70, 59), (160,), (100, 20))  # of documents in rows of 160: three blocks, the last one short


def plain(queries: Array, keys: Array, values: Array, segments: Array, how: AttentionSpec = EVERYTHING) -> Array:
    """The whole square, head by head."""
    group = queries.shape[2] // keys.shape[2]
    keys, values = (jnp.repeat(array, group, axis=2) for array in (keys, values))
    scores = jnp.einsum("bthd,bshd->bhts", queries, keys) * (how.scale or queries.shape[-1] ** -0.5)
    if how.softcap is not None:
        scores = how.softcap * jnp.tanh(scores / how.softcap)
    slots = queries.shape[1]
    causal = np.tri(slots, dtype=bool) & ~np.tri(slots, k=-(how.window or slots), dtype=bool)
    sees = causal & (segments[:, :, None] == segments[:, None, :])
    shares = nn.softmax(jnp.where(sees[:, None], scores, -jnp.inf))
    return jnp.einsum("bhts,bshd->bthd", shares, values)

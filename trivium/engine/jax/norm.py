"""A vector -> the same direction at unit mean square, times a weight; float32 arithmetic whatever flows."""

import jax.numpy as jnp
from flax import nnx
from jax import Array, lax


class RMSNorm(nnx.Module):
    """Root-mean-square norm over the last dimension."""

    def __init__(self, width: int, eps: float) -> None:
        self.weight = nnx.Param(jnp.ones(width))
        self.eps = eps

    def __call__(self, vectors: Array) -> Array:
        """Normalised vectors, in the type they came in."""
        wide = vectors.astype(jnp.float32)
        inverse = lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + self.eps)
        return (wide * inverse * self.weight[...].astype(jnp.float32)).astype(vectors.dtype)

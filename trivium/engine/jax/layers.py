"""Residual stream -> residual stream: a layer of attention and feed-forward, with the norm and the rotation it uses.

Norms compute in float32 whatever flows. Rotary positions pair a head's channel i with channel i + head_dim / 2, as in
the checkpoints that others publish. Tables are arguments of a compiled step, never constants in it: a stage with other
rotary positions compiles nothing.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array, lax
from jax.sharding import Mesh

from trivium.engine.jax.attention import Attend
from trivium.engine.jax.sharding import whole_everywhere
from trivium.model.rotary import rotary_tables
from trivium.model.spec import ModelSpec, RopeSpec


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


class Rotation(NamedTuple):
    """Rotations: of every position as a table (T, head_dim / 2), or of every slot (B, T, head_dim / 2)."""

    cos: Array
    sin: Array

    @classmethod
    def table(cls, rope: RopeSpec, head_dim: int, seq_len: int, mesh: Mesh) -> "Rotation":
        """One rotation for each position of a row, on every device."""
        return cls(*(whole_everywhere(table, mesh) for table in rotary_tables(rope, head_dim, seq_len)))

    def at(self, positions: Array) -> "Rotation":
        """A table's rotations at these positions (B, T)."""
        return Rotation(self.cos[positions], self.sin[positions])

    def apply_rotary(self, heads: Array) -> Array:
        """Heads (B, T, heads, head_dim), rotated by their slots' positions."""
        cos, sin = self.cos[..., None, :], self.sin[..., None, :]
        first, second = jnp.split(heads.astype(jnp.float32), 2, axis=-1)
        rotated = jnp.concatenate((first * cos - second * sin, second * cos + first * sin), axis=-1)
        return rotated.astype(heads.dtype)


class Linear(nnx.Module):
    """A weight (outputs, inputs) as torch has it, without bias, cast to the type of what it is applied to."""

    def __init__(self, inputs: int, outputs: int) -> None:
        self.weight = nnx.Param(jnp.zeros((outputs, inputs)))

    def __call__(self, vectors: Array) -> Array:
        return jnp.einsum("...i,oi->...o", vectors, self.weight[...].astype(vectors.dtype))


class Attention(nnx.Module):
    """Every slot asks the slots it may see; queries share keys and values in groups."""

    def __init__(self, spec: ModelSpec, has_rope: bool) -> None:
        self.head_dim = spec.head_dim
        self.has_rope = has_rope
        self.query = Linear(spec.width, spec.heads * spec.head_dim)
        self.key = Linear(spec.width, spec.kv_heads * spec.head_dim)
        self.value = Linear(spec.width, spec.kv_heads * spec.head_dim)
        self.output = Linear(spec.heads * spec.head_dim, spec.width)
        self.query_norm = RMSNorm(spec.head_dim, spec.norm_eps) if spec.qk_norm else None
        self.key_norm = RMSNorm(spec.head_dim, spec.norm_eps) if spec.qk_norm else None

    def __call__(self, x: Array, rotation: Rotation, attend: Attend) -> Array:
        """What each slot gathers, in the width of the residual stream."""
        projections, heads = (self.query, self.key, self.value), (*x.shape[:-1], -1, self.head_dim)
        queries, keys, values = (project(x).reshape(heads) for project in projections)
        if self.query_norm is not None and self.key_norm is not None:
            queries, keys = self.query_norm(queries), self.key_norm(keys)
        if self.has_rope:
            queries, keys = rotation.apply_rotary(queries), rotation.apply_rotary(keys)
        gathered = attend(queries, keys, values)
        return self.output(gathered.reshape(*gathered.shape[:-2], -1))


class FeedForward(nnx.Module):
    """SwiGLU: one projection gates another."""

    def __init__(self, spec: ModelSpec) -> None:
        self.gate = Linear(spec.width, spec.ffn)
        self.up = Linear(spec.width, spec.ffn)
        self.down = Linear(spec.ffn, spec.width)

    def __call__(self, x: Array) -> Array:
        return self.down(jax.nn.silu(self.gate(x)) * self.up(x))


class Layer(nnx.Module):
    """Attention, then feed-forward, each added to the stream that it read through a norm."""

    def __init__(self, spec: ModelSpec, has_rope: bool) -> None:
        self.attention_norm = RMSNorm(spec.width, spec.norm_eps)
        self.attention = Attention(spec, has_rope)
        self.feed_forward_norm = RMSNorm(spec.width, spec.norm_eps)
        self.feed_forward = FeedForward(spec)

    def __call__(self, x: Array, rotation: Rotation, attend: Attend) -> Array:
        x = x + self.attention(self.attention_norm(x), rotation, attend)
        return x + self.feed_forward(self.feed_forward_norm(x))

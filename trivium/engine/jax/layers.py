"""Residual stream -> residual stream: a layer of attention and feed-forward, with the norm and the rotation it uses.

    before    x = x + attention(norm(x))              Llama
    after     x = x + norm(attention(x))              OLMo 2
    both      x = x + norm(attention(norm(x)))        Gemma 3

and the same of the feed-forward. Norms and xIELU compute in float32 whatever flows. Rotary positions pair a head's
channel i with channel i + r / 2 of the r first, which rotate, as in the checkpoints that others publish. Tables are
arguments of a compiled step, never constants in it: a stage with other rotary positions compiles nothing.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array, lax
from jax.sharding import Mesh

from trivium.engine.jax.attention import Attend
from trivium.engine.jax.sharding import whole_everywhere
from trivium.model.rotary import rotary_tables
from trivium.model.spec import XIELU_BETA, XIELU_EPS, Activation, ModelSpec, RopeSpec


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
    """Rotations: of every position as a table (T, pairs), or of every slot (B, T, pairs)."""

    cos: Array
    sin: Array

    @classmethod
    def table(cls, rope: RopeSpec, channels: int, seq_len: int, mesh: Mesh) -> "Rotation":
        """One rotation for each position of a row, on every device."""
        return cls(*(whole_everywhere(table, mesh) for table in rotary_tables(rope, channels, seq_len)))

    def at(self, positions: Array) -> "Rotation":
        """A table's rotations at these positions (B, T)."""
        return Rotation(self.cos[positions], self.sin[positions])

    def apply_rotary(self, heads: Array) -> Array:
        """Heads (B, T, heads, head_dim), rotated by their slots' positions; channels beyond the table's stay."""
        cos, sin = self.cos[..., None, :], self.sin[..., None, :]
        pairs = cos.shape[-1]
        first, second, rest = jnp.split(heads.astype(jnp.float32), (pairs, 2 * pairs), axis=-1)
        rotated = jnp.concatenate((first * cos - second * sin, second * cos + first * sin, rest), axis=-1)
        return rotated.astype(heads.dtype)


class Rotations(NamedTuple):
    """Those of a model's layers: of sliding ones where it has them, and of all others."""

    full: Rotation
    sliding: Rotation | None

    @classmethod
    def tables(cls, rope: RopeSpec, spec: ModelSpec, seq_len: int, mesh: Mesh) -> "Rotations":
        """Of every position of a row; both kinds have one, if the same, so that a stage may change either."""
        sliding = Rotation.table(rope.sliding or rope, spec.rotated, seq_len, mesh) if spec.sliding else None
        return cls(Rotation.table(rope, spec.rotated, seq_len, mesh), sliding)

    def at(self, positions: Array) -> "Rotations":
        """The tables' rotations at these positions (B, T)."""
        return Rotations(self.full.at(positions), None if self.sliding is None else self.sliding.at(positions))

    def of(self, slides: bool) -> Rotation:
        """Those of a layer of one kind."""
        return self.sliding if slides and self.sliding is not None else self.full


class Linear(nnx.Module):
    """A weight (outputs, inputs) as torch has it, and a bias if asked for, in the type of what they are applied to."""

    def __init__(self, inputs: int, outputs: int, *, bias: bool = False) -> None:
        self.weight = nnx.Param(jnp.zeros((outputs, inputs)))
        self.bias = nnx.Param(jnp.zeros(outputs)) if bias else None

    def __call__(self, vectors: Array) -> Array:
        found = jnp.einsum("...i,oi->...o", vectors, self.weight[...].astype(vectors.dtype))
        return found if self.bias is None else found + self.bias[...].astype(vectors.dtype)


class Attention(nnx.Module):
    """Every slot asks the slots it may see; queries share keys and values in groups."""

    def __init__(self, spec: ModelSpec, has_rope: bool) -> None:
        self.head_dim = spec.head_dim
        self.has_rope = has_rope
        self.is_joint = spec.qk_norm_joint
        queries, keys = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
        self.query = Linear(spec.width, queries, bias=spec.qkv_bias)
        self.key = Linear(spec.width, keys, bias=spec.qkv_bias)
        self.value = Linear(spec.width, keys, bias=spec.qkv_bias)
        self.output = Linear(queries, spec.width)
        widths = (queries, keys) if spec.qk_norm_joint else (spec.head_dim, spec.head_dim)
        norms = [RMSNorm(width, spec.norm_eps) if spec.qk_norm else None for width in widths]
        self.query_norm, self.key_norm = norms

    def __call__(self, x: Array, rotation: Rotation, attend: Attend) -> Array:
        """What each slot gathers, in the width of the residual stream."""
        queries, keys = self._heads(self.query(x), self.query_norm), self._heads(self.key(x), self.key_norm)
        values = self._heads(self.value(x), None)
        if self.has_rope:
            queries, keys = rotation.apply_rotary(queries), rotation.apply_rotary(keys)
        gathered = attend(queries, keys, values)
        return self.output(gathered.reshape(*gathered.shape[:-2], -1))

    def _heads(self, projected: Array, norm: RMSNorm | None) -> Array:
        """In heads, normalised all together or each by itself."""
        if norm is not None and self.is_joint:
            projected = norm(projected)
        heads = projected.reshape(*projected.shape[:-1], -1, self.head_dim)
        return heads if norm is None or self.is_joint else norm(heads)


class XIELU(nnx.Module):
    """A parabola above zero, an exponential below, whose curvatures are trained (arXiv:2411.13010)."""

    def __init__(self) -> None:
        self.alpha_p = nnx.Param(jnp.zeros(1))
        self.alpha_n = nnx.Param(jnp.zeros(1))

    def __call__(self, vectors: Array) -> Array:
        x = vectors.astype(jnp.float32)
        above, below = (jax.nn.softplus(each[...].astype(jnp.float32)) for each in (self.alpha_p, self.alpha_n))
        negative = (jnp.expm1(jnp.minimum(x, XIELU_EPS)) - x) * (XIELU_BETA + below)
        return (jnp.where(x > 0, above * x * x, negative) + XIELU_BETA * x).astype(vectors.dtype)


ACTIVATIONS: dict[Activation, Callable[[Array], Array]] = {
    "silu": jax.nn.silu,
    "gelu": partial(jax.nn.gelu, approximate=False),
    "gelu_tanh": partial(jax.nn.gelu, approximate=True),
}


class FeedForward(nnx.Module):
    """Through a wider space: an activation gates what goes up there, as SwiGLU's does, or is all of it."""

    def __init__(self, spec: ModelSpec) -> None:
        self.gate = Linear(spec.width, spec.ffn) if spec.gated else None
        self.up = Linear(spec.width, spec.ffn)
        self.down = Linear(spec.ffn, spec.width)
        self.activation = XIELU() if spec.activation == "xielu" else ACTIVATIONS[spec.activation]

    def __call__(self, x: Array) -> Array:
        if self.gate is None:
            return self.down(self.activation(self.up(x)))
        return self.down(self.activation(self.gate(x)) * self.up(x))


class Layer(nnx.Module):
    """Attention, then feed-forward, each added to the stream; norms of what they read, of what they add, or both."""

    def __init__(self, spec: ModelSpec, has_rope: bool) -> None:
        def norm(is_there: bool) -> RMSNorm | None:
            return RMSNorm(spec.width, spec.norm_eps) if is_there else None

        before, after = spec.norm in ("before", "both"), spec.norm in ("after", "both")
        self.attention_norm = norm(before)
        self.attention = Attention(spec, has_rope)
        self.attention_post_norm = norm(after)
        self.feed_forward_norm = norm(before)
        self.feed_forward = FeedForward(spec)
        self.feed_forward_post_norm = norm(after)

    def __call__(self, x: Array, rotation: Rotation, attend: Attend) -> Array:
        gathered = self.attention(_normed(self.attention_norm, x), rotation, attend)
        x = x + _normed(self.attention_post_norm, gathered)
        return x + _normed(self.feed_forward_post_norm, self.feed_forward(_normed(self.feed_forward_norm, x)))


def _normed(norm: RMSNorm | None, vectors: Array) -> Array:
    return vectors if norm is None else norm(vectors)

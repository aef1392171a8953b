"""Queries and keys -> the same, rotated by their positions.

A head's channel i is paired with channel i + head_dim / 2, as in the checkpoints that others publish. Tables are
arguments of a compiled step, never constants in it: a stage with other rotary positions compiles nothing.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array
from jax.sharding import Mesh

from trivium.engine.jax.sharding import whole_everywhere
from trivium.model.rotary import rotary_tables
from trivium.model.spec import RopeSpec


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

"""Queries and keys -> the same, rotated by their positions.

A head's channel i is paired with channel i + head_dim / 2, as in the checkpoints that others publish. Written
as one autograd function: rotating back is the gradient of rotating, so nothing is kept but the two tables, and
a pass costs 0.6 of what autograd makes of the same formula.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trivium.model.rotary import rotary_tables
from trivium.model.spec import RopeSpec


@dataclass(frozen=True, slots=True)
class Rotation:
    """The rotation of every slot: (B or 1, T, 1, head_dim); the sine's first half is negated."""

    cos: Tensor
    sin: Tensor

    @classmethod
    def table(cls, rope: RopeSpec, head_dim: int, seq_len: int, device: torch.device) -> "Rotation":
        """One rotation for each position of a row: (1, seq_len, 1, head_dim)."""
        cos, sin = (torch.from_numpy(table).to(device) for table in rotary_tables(rope, head_dim, seq_len))
        return cls(torch.cat((cos, cos), -1)[None, :, None], torch.cat((-sin, sin), -1)[None, :, None])

    def at(self, positions: Tensor) -> "Rotation":
        """A table's rotations at these positions (B, T)."""
        return Rotation(self.cos[0, positions], self.sin[0, positions])

    def apply_rotary(self, heads: Tensor) -> Tensor:
        """Heads (B, T, heads, head_dim), rotated by their slots' positions."""
        rotated: Tensor = _ApplyRotary.apply(heads, self.cos, self.sin)  # type: ignore[no-untyped-call]
        return rotated

    def rotated(self, heads: Tensor) -> Tensor:
        """The same where nothing goes backward."""
        return _rotated(heads, self.cos, self.sin)


class _ApplyRotary(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return _rotated(heads, cos, sin)

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor | None, ...]:
        cos, sin = ctx.saved_tensors
        return _rotated(outer[0], cos, -sin), None, None


def _rotated(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    partners = heads.roll(heads.shape[-1] // 2, -1)
    return (heads * cos).addcmul_(partners, sin).to(heads.dtype)

"""Residual stream -> residual stream: a layer of attention and feed-forward, with the norm and the rotation it uses.

torch has one kernel for the norm on a GPU; on a CPU it becomes eight passes over memory, so there it is written out,
at a third of the time. In bfloat16 the norm's arithmetic is float32.

Rotary positions pair a head's channel i with channel i + head_dim / 2, as in the checkpoints that others publish.
Written as one autograd function: rotating back is the gradient of rotating, so nothing is kept but the two tables,
and a pass costs 0.6 of what autograd makes of the same formula.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Partial
from torch.nn.functional import rms_norm, silu

from trivium.engine.torch.attention import Layout
from trivium.model.rotary import rotary_tables
from trivium.model.spec import ModelSpec, RopeSpec


class RMSNorm(nn.Module):
    """Root-mean-square norm over the last dimension."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, vectors: Tensor) -> Tensor:
        """Normalised vectors, in the type they came in."""
        weight: Tensor = self.weight
        if isinstance(weight, DTensor):  # ranks share the slots or the heads: each learns from its own
            weight = weight.to_local(grad_placements=[Partial()])
        if vectors.device.type != "cpu" or vectors.dtype != torch.float32 or torch.compiler.is_compiling():
            wide = rms_norm(vectors.float(), weight.shape, weight.float(), self.eps)
            return wide.to(vectors.dtype)
        flat = vectors.reshape(-1, vectors.shape[-1])
        normed: Tensor = _RMSNorm.apply(flat, weight, self.eps)  # type: ignore[no-untyped-call]
        return normed.view_as(vectors)


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, vectors: Tensor, weight: Tensor, eps: float) -> Tensor:
        mean_square = torch.linalg.vecdot(vectors, vectors).div_(vectors.shape[-1])
        inverse = mean_square.add_(eps).rsqrt_().unsqueeze(-1)
        ctx.save_for_backward(vectors, weight, inverse)
        normed: Tensor = vectors * inverse
        return normed.mul_(weight)

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor | None, ...]:
        vectors, weight, inverse = ctx.saved_tensors
        products = outer[0] * vectors
        weight_gradient = products.T @ inverse.squeeze(-1)
        # What a longer vector would gain is taken back: the part of the gradient along the vector itself.
        along = (products @ weight).unsqueeze(-1) * inverse**3 / -vectors.shape[-1]
        gradient = (outer[0] * weight).mul_(inverse).addcmul_(vectors, along)
        return gradient, weight_gradient, None


@dataclass(frozen=True, slots=True)
class Rotation:
    """The rotation of every slot: (B or 1, T, 1, head_dim); the sine's first half is negated."""

    cos: Tensor
    sin: Tensor
    dropped: tuple[int, ...] = ()  # layers that do not rotate
    rotates: bool = True

    @classmethod
    def table(cls, rope: RopeSpec, head_dim: int, seq_len: int, device: torch.device) -> "Rotation":
        """One rotation for each position of a row: (1, seq_len, 1, head_dim)."""
        cos, sin = (torch.from_numpy(table).to(device) for table in rotary_tables(rope, head_dim, seq_len))
        tables = torch.cat((cos, cos), -1)[None, :, None], torch.cat((-sin, sin), -1)[None, :, None]
        return cls(*tables, rope.dropped)

    def of_layer(self, number: int) -> "Rotation":
        """What a layer rotates by, which is nothing where its positions are dropped."""
        return replace(self, rotates=False) if number in self.dropped else self

    @property
    def seq_len(self) -> int:
        return self.cos.shape[1]

    def of_rows(self, seq_len: int, positions: Tensor | None) -> "Rotation":
        """Those of rows of this length, whose slots have these positions (B, T), or count them through the row."""
        if positions is not None:
            return self.at(positions)
        return replace(self, cos=self.cos[:, :seq_len], sin=self.sin[:, :seq_len])

    def at(self, positions: Tensor) -> "Rotation":
        """A table's rotations at these positions (B, T)."""
        return replace(self, cos=self.cos[0, positions], sin=self.sin[0, positions])

    def apply_rotary(self, heads: Tensor) -> Tensor:
        """Heads (B, T, heads, head_dim), rotated by their slots' positions."""
        if not self.rotates:
            return heads
        rotated: Tensor = _ApplyRotary.apply(heads, self.cos, self.sin)  # type: ignore[no-untyped-call]
        return rotated

    def rotated(self, heads: Tensor) -> Tensor:
        """The same where nothing goes backward."""
        return _rotated(heads, self.cos, self.sin) if self.rotates else heads


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


class Attention(nn.Module):
    """Every slot asks the slots it may see; queries share keys and values in groups."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.head_dim = spec.head_dim
        self.query = nn.Linear(spec.width, spec.heads * spec.head_dim, bias=False)
        self.key = nn.Linear(spec.width, spec.kv_heads * spec.head_dim, bias=False)
        self.value = nn.Linear(spec.width, spec.kv_heads * spec.head_dim, bias=False)
        self.output = nn.Linear(spec.heads * spec.head_dim, spec.width, bias=False)
        self.query_norm = RMSNorm(spec.head_dim, spec.norm_eps) if spec.qk_norm else None
        self.key_norm = RMSNorm(spec.head_dim, spec.norm_eps) if spec.qk_norm else None

    def forward(self, x: Tensor, rotation: Rotation, layout: Layout) -> Tensor:
        """What each slot gathers, in the width of the residual stream."""
        projections = (self.query, self.key, self.value)
        queries, keys, values = (project(x).unflatten(-1, (-1, self.head_dim)) for project in projections)
        if self.query_norm is not None and self.key_norm is not None:
            queries, keys = self.query_norm(queries), self.key_norm(keys)
        gathered = layout.attend(rotation.apply_rotary(queries), rotation.apply_rotary(keys), values)
        output: Tensor = self.output(gathered.flatten(-2))
        return output


class FeedForward(nn.Module):
    """SwiGLU: one projection gates another."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.gate = nn.Linear(spec.width, spec.ffn, bias=False)
        self.up = nn.Linear(spec.width, spec.ffn, bias=False)
        self.down = nn.Linear(spec.ffn, spec.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.down(silu(self.gate(x)) * self.up(x))
        return output


class Layer(nn.Module):
    """Attention, then feed-forward, each added to the stream that it read through a norm."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(spec.width, spec.norm_eps)
        self.attention = Attention(spec)
        self.feed_forward_norm = RMSNorm(spec.width, spec.norm_eps)
        self.feed_forward = FeedForward(spec)

    def forward(self, x: Tensor, rotation: Rotation, layout: Layout) -> Tensor:
        x = x + self.attention(self.attention_norm(x), rotation, layout)
        output: Tensor = x + self.feed_forward(self.feed_forward_norm(x))
        return output

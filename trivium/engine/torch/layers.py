"""Residual stream -> residual stream: a layer of attention and feed-forward, with the norms and the rotation it uses.

torch has one kernel for the norm on a GPU; on a CPU it becomes eight passes over memory, so there it is written out,
at a third of the time. In bfloat16 the norm's arithmetic is float32.

Rotary positions pair a head's channel i with channel i + head_dim / 2, as in the checkpoints that others publish.
Written as one autograd function: rotating back is the gradient of rotating, so nothing is kept but the two tables,
and a pass costs 0.6 of what autograd makes of the same formula.

A layer has what its spec says: norms before its sublayers, after them or both, biases, a window, another activation.
What it does not have costs nothing.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Partial
from torch.nn.functional import gelu, rms_norm, silu, softplus

from trivium.engine.torch.attention import Layout
from trivium.engine.torch.tensor_parallel.axis import ALONE, TensorAxis
from trivium.model.rotary import rotary_tables
from trivium.model.spec import XIELU_BETA, XIELU_EPS, ModelSpec, RopeSpec

ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "silu": silu,
    "gelu": gelu,
    "gelu_tanh": partial(gelu, approximate="tanh"),
}


class RMSNorm(nn.Module):
    """Root-mean-square norm over the last dimension."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, vectors: Tensor) -> Tensor:
        """Normalised vectors, in the type they came in."""
        weight = _own_copy(self.weight)
        if vectors.device.type != "cpu" or vectors.dtype != torch.float32 or torch.compiler.is_compiling():
            wide = rms_norm(vectors.float(), weight.shape, weight.float(), self.eps)
            return wide.to(vectors.dtype)
        flat = vectors.reshape(-1, vectors.shape[-1])
        normed: Tensor = _RMSNorm.apply(flat, weight, self.eps)  # type: ignore[no-untyped-call]
        return normed.view_as(vectors)


def _own_copy(weight: Tensor) -> Tensor:
    """A parameter that every rank of the tensor axis has: they share slots or heads, and each learns from its own."""
    return weight.to_local(grad_placements=[Partial()]) if isinstance(weight, DTensor) else weight


class JointNorm(RMSNorm):
    """The same norm over all heads together, of which each rank of the tensor axis has some: exact, by one sum."""

    axis: TensorAxis = ALONE

    def forward(self, vectors: Tensor) -> Tensor:
        if not isinstance(self.weight, DTensor):
            return super().forward(vectors)
        wide = vectors.float()
        squares = self.axis.total(wide.square().sum(-1, keepdim=True))
        normed = wide * (squares / len(self.weight) + self.eps).rsqrt() * self.weight.to_local()
        return normed.to(vectors.dtype)


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
    """The rotation of every slot: (B or 1, T, 1, channels that rotate); the sine's first half is negated."""

    cos: Tensor
    sin: Tensor
    dropped: tuple[int, ...] = ()  # layers that do not rotate
    rotates: bool = True
    sliding: "Rotation | None" = None  # that of sliding layers, where it is another

    @classmethod
    def table(cls, rope: RopeSpec, head_dim: int, seq_len: int, device: torch.device) -> "Rotation":
        """One rotation for each position of a row: (1, seq_len, 1, head_dim); of the channels that rotate."""
        cos, sin = (torch.from_numpy(table).to(device) for table in rotary_tables(rope, head_dim, seq_len))
        tables = torch.cat((cos, cos), -1)[None, :, None], torch.cat((-sin, sin), -1)[None, :, None]
        sliding = None if rope.sliding is None else cls.table(rope.sliding, head_dim, seq_len, device)
        return cls(*tables, rope.dropped, sliding=sliding)

    def of_layer(self, number: int, slides: bool = False) -> "Rotation":
        """What a layer rotates by, which is nothing where its positions are dropped."""
        if number in self.dropped:
            return replace(self, rotates=False, sliding=None)
        if self.sliding is None:
            return self
        return self.sliding if slides else replace(self, sliding=None)

    @property
    def seq_len(self) -> int:
        return self.cos.shape[1]

    def of_rows(self, seq_len: int, positions: Tensor | None) -> "Rotation":
        """Those of rows of this length, whose slots have these positions (B, T), or count them through the row."""
        if positions is not None:
            return self.at(positions)
        sliding = self.sliding and self.sliding.of_rows(seq_len, None)
        return replace(self, cos=self.cos[:, :seq_len], sin=self.sin[:, :seq_len], sliding=sliding)

    def at(self, positions: Tensor) -> "Rotation":
        """A table's rotations at these positions (B, T)."""
        sliding = self.sliding and self.sliding.at(positions)
        return replace(self, cos=self.cos[0, positions], sin=self.sin[0, positions], sliding=sliding)

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
    """The first channels rotated, as many as the tables have."""
    channels = cos.shape[-1]
    if channels < heads.shape[-1]:
        return torch.cat((_rotated(heads[..., :channels], cos, sin), heads[..., channels:]), -1)
    partners = heads.roll(heads.shape[-1] // 2, -1)
    return (heads * cos).addcmul_(partners, sin).to(heads.dtype)


class Attention(nn.Module):
    """Every slot asks the slots it may see; queries share keys and values in groups."""

    def __init__(self, spec: ModelSpec, number: int) -> None:
        super().__init__()
        self.head_dim = spec.head_dim
        self.how = spec.attention_of(number)
        of_queries, of_keys = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
        self.query = nn.Linear(spec.width, of_queries, bias=spec.qkv_bias)
        self.key = nn.Linear(spec.width, of_keys, bias=spec.qkv_bias)
        self.value = nn.Linear(spec.width, of_keys, bias=spec.qkv_bias)
        self.output = nn.Linear(of_queries, spec.width, bias=False)
        self.joint = spec.qk_norm_joint

        def norm(width: int) -> RMSNorm | None:
            if not spec.qk_norm:
                return None
            return JointNorm(width, spec.norm_eps) if self.joint else RMSNorm(spec.head_dim, spec.norm_eps)

        self.query_norm, self.key_norm = norm(of_queries), norm(of_keys)

    def forward(self, x: Tensor, rotation: Rotation, layout: Layout) -> Tensor:
        """What each slot gathers, in the width of the residual stream."""
        queries, keys, values = self.query(x), self.key(x), self.value(x)
        if self.joint:
            queries, keys = self._normed(queries, keys)
        queries, keys, values = (each.unflatten(-1, (-1, self.head_dim)) for each in (queries, keys, values))
        if not self.joint:
            queries, keys = self._normed(queries, keys)
        gathered = layout.attend(rotation.apply_rotary(queries), rotation.apply_rotary(keys), values, self.how)
        output: Tensor = self.output(gathered.flatten(-2))
        return output

    def _normed(self, queries: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        if self.query_norm is None or self.key_norm is None:
            return queries, keys
        return self.query_norm(queries), self.key_norm(keys)


class XIELU(nn.Module):
    """x^2 and an exponential, joined at 0, with two trained numbers (arXiv 2411.13010)."""

    def __init__(self) -> None:
        super().__init__()
        self.alpha_p = nn.Parameter(torch.ones(1))
        self.alpha_n = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        rises, falls = (softplus(_own_copy(alpha)).to(x.dtype) for alpha in (self.alpha_p, self.alpha_n))
        found: Tensor = _XIELU.apply(x, rises, falls + XIELU_BETA)  # type: ignore[no-untyped-call]
        return found


class _XIELU(torch.autograd.Function):
    """As one function, which keeps what it was given and nothing else."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, rises: Tensor, falls: Tensor) -> Tensor:
        ctx.save_for_backward(x, rises, falls)
        below = torch.expm1(x.clamp(max=XIELU_EPS)).sub_(x).mul_(falls)
        return torch.where(x > 0, rises * x * x, below).add_(x, alpha=XIELU_BETA)

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor | None, ...]:
        x, rises, falls = ctx.saved_tensors
        wanted = outer[0]
        is_above = x > 0
        below = torch.expm1(x.clamp(max=XIELU_EPS))
        of_rises = torch.where(is_above, wanted * x * x, 0).sum().view_as(rises)
        of_falls = torch.where(is_above, 0, wanted * (below - x)).sum().view_as(falls)
        slopes = torch.where(is_above, 2 * rises * x, falls * torch.where(x < XIELU_EPS, below, -1)).add_(XIELU_BETA)
        return wanted * slopes, of_rises, of_falls


class FeedForward(nn.Module):
    """One projection gates another (SwiGLU, GeGLU), or passes the activation alone."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.gate = nn.Linear(spec.width, spec.ffn, bias=False) if spec.gated else None
        self.up = nn.Linear(spec.width, spec.ffn, bias=False)
        self.down = nn.Linear(spec.ffn, spec.width, bias=False)
        self.activation: Callable[[Tensor], Tensor] = (
            XIELU() if spec.activation == "xielu" else ACTIVATIONS[spec.activation]
        )

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.down(self._between(x))
        return output

    def _between(self, x: Tensor) -> Tensor:
        if self.gate is None:
            return self.activation(self.up(x))
        between: Tensor = self.activation(self.gate(x)) * self.up(x)
        return between


class Layer(nn.Module):
    """Attention, then feed-forward, each added to the stream: of norms of it, and through norms, as its spec says."""

    def __init__(self, spec: ModelSpec, number: int = 0) -> None:
        super().__init__()
        before, after = spec.norm != "after", spec.norm != "before"

        def norm() -> RMSNorm:
            return RMSNorm(spec.width, spec.norm_eps)

        self.attention_norm = norm() if before else None
        self.attention = Attention(spec, number)
        self.attention_post_norm = norm() if after else None
        self.feed_forward_norm = norm() if before else None
        self.feed_forward = FeedForward(spec)
        self.feed_forward_post_norm = norm() if after else None

    def forward(self, x: Tensor, rotation: Rotation, layout: Layout) -> Tensor:
        read = x if self.attention_norm is None else self.attention_norm(x)
        added = self.attention(read, rotation, layout)
        x = x + (added if self.attention_post_norm is None else self.attention_post_norm(added))
        read = x if self.feed_forward_norm is None else self.feed_forward_norm(x)
        added = self.feed_forward(read)
        output: Tensor = x + (added if self.feed_forward_post_norm is None else self.feed_forward_post_norm(added))
        return output

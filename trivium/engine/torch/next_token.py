"""One token of each row -> the logits of what follows, by the weights themselves: for a model that one process holds.

What the decoder's modules compute, with fewer calls: at one token a row these, and not the arithmetic, are the price.
Matrices are cast to the precision that flows once for a generation, and not once a token.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, linear, silu

from trivium.engine.torch.attention import Layout
from trivium.engine.torch.model import Decoder, Layer
from trivium.engine.torch.norm import RMSNorm
from trivium.engine.torch.rotary import Rotation


@dataclass(frozen=True, slots=True)
class _Norm:
    weight: Tensor  # float32
    eps: float

    @classmethod
    def of(cls, norm: RMSNorm) -> "_Norm":
        return cls(norm.weight.detach().float(), norm.eps)

    def __call__(self, vectors: Tensor) -> Tensor:
        normed = torch.rms_norm(vectors.float(), self.weight.shape, self.weight, self.eps)
        return normed.to(vectors.dtype)


@dataclass(frozen=True, slots=True)
class _Layer:
    """A layer's weights; matrices that are added to the stream are transposed for `addmm`."""

    attention_norm: _Norm
    query: Tensor
    key: Tensor
    value: Tensor
    query_norm: _Norm | None
    key_norm: _Norm | None
    output: Tensor
    feed_forward_norm: _Norm
    gate: Tensor
    up: Tensor
    down: Tensor

    @classmethod
    def of(cls, layer: Layer, precision: torch.dtype) -> "_Layer":
        attention, feed_forward = layer.attention, layer.feed_forward

        def cast(linear: nn.Linear) -> Tensor:
            return linear.weight.detach().to(precision)

        return cls(
            attention_norm=_Norm.of(layer.attention_norm),
            query=cast(attention.query),
            key=cast(attention.key),
            value=cast(attention.value),
            query_norm=None if attention.query_norm is None else _Norm.of(attention.query_norm),
            key_norm=None if attention.key_norm is None else _Norm.of(attention.key_norm),
            output=cast(attention.output).T,
            feed_forward_norm=_Norm.of(layer.feed_forward_norm),
            gate=cast(feed_forward.gate),
            up=cast(feed_forward.up),
            down=cast(feed_forward.down).T,
        )

    def forward(self, x: Tensor, head_dim: int, rotation: Rotation, layout: Layout) -> Tensor:
        """The stream (rows, width), one layer on."""
        normed = self.attention_norm(x)
        queries, keys, values = (
            linear(normed, matrix).view(len(x), 1, len(matrix) // head_dim, head_dim)
            for matrix in (self.query, self.key, self.value)
        )
        if self.query_norm is not None and self.key_norm is not None:
            queries, keys = self.query_norm(queries), self.key_norm(keys)
        gathered = layout.attend(rotation.rotated(queries), rotation.rotated(keys), values)
        x = torch.addmm(x, gathered.flatten(1), self.output)
        normed = self.feed_forward_norm(x)
        return torch.addmm(x, silu(linear(normed, self.gate)).mul_(linear(normed, self.up)), self.down)


class NextToken:
    """A decoder's weights, to be used token by token."""

    def __init__(self, model: Decoder) -> None:
        layers = [layer for layer in model.layers if isinstance(layer, Layer)]
        self.spec = model.spec
        self.precision = model.precision
        self.embedding = model.embedding.weight.detach()
        self.layers = [_Layer.of(layer, model.precision) for layer in layers]
        self.norm = _Norm.of(model.norm)
        self.unembedding = model.lm_head.weight.detach().to(model.precision)[: model.spec.vocab]

    def logits(self, tokens: Tensor, rotation: Rotation, layout: Layout) -> Tensor:
        """Logits (rows, vocab) in float32 of what follows these tokens (rows,)."""
        x = embedding(tokens, self.embedding).to(self.precision)
        for layer in self.layers:
            x = layer.forward(x, self.spec.head_dim, rotation, layout)
        return linear(self.norm(x), self.unembedding).float()

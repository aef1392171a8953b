"""Tokens -> hidden states -> losses: one decoder for the Llama, Mistral and Qwen3 families.

    x = embedding(tokens)
    x = x + attention(norm(x));  x = x + feed_forward(norm(x))      layer by layer
    losses = cross-entropy of norm(x) against the unembedding

Weights stay float32. `precision` is the type of what flows between them: a matrix is cast where it is used,
norms, rotations and losses compute in float32 whatever flows.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, linear, silu
from torch.utils.checkpoint import checkpoint

from trivium.engine.torch.attention import Layout
from trivium.engine.torch.loss import Losses, Objective, ReferenceStates, sliced_loss
from trivium.engine.torch.norm import RMSNorm
from trivium.engine.torch.rotary import Rotation
from trivium.engine.torch.rows import Rows
from trivium.model.spec import ModelSpec


class Matrix(nn.Module):
    """A weight (outputs, inputs) without bias, cast to the type of what it is applied to."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs))

    def forward(self, vectors: Tensor) -> Tensor:
        """Vectors, multiplied."""
        return linear(vectors, self.weight.to(vectors.dtype))


class Attention(nn.Module):
    """Every slot asks the slots it may see; queries share keys and values in groups."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.head_dim = spec.head_dim
        self.query = Matrix(spec.width, spec.heads * spec.head_dim)
        self.key = Matrix(spec.width, spec.kv_heads * spec.head_dim)
        self.value = Matrix(spec.width, spec.kv_heads * spec.head_dim)
        self.output = Matrix(spec.heads * spec.head_dim, spec.width)
        self.query_norm = RMSNorm(spec.head_dim, spec.norm_eps) if spec.qk_norm else None
        self.key_norm = RMSNorm(spec.head_dim, spec.norm_eps) if spec.qk_norm else None

    def forward(self, x: Tensor, rotation: Rotation, layout: Layout) -> Tensor:
        """What each slot gathers, in the width of the residual stream."""
        queries, keys, values = (
            matrix(x).unflatten(-1, (-1, self.head_dim)) for matrix in (self.query, self.key, self.value)
        )
        if self.query_norm is not None and self.key_norm is not None:
            queries, keys = self.query_norm(queries), self.key_norm(keys)
        gathered = layout.attend(rotation.turn(queries), rotation.turn(keys), values)
        output: Tensor = self.output(gathered.flatten(-2))
        return output


class FeedForward(nn.Module):
    """SwiGLU: one projection gates another."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.gate = Matrix(spec.width, spec.ffn)
        self.up = Matrix(spec.width, spec.ffn)
        self.down = Matrix(spec.ffn, spec.width)

    def forward(self, x: Tensor) -> Tensor:
        """Each slot by itself."""
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
        """The stream, one layer on."""
        x = x + self.attention(self.attention_norm(x), rotation, layout)
        output: Tensor = x + self.feed_forward(self.feed_forward_norm(x))
        return output


class Decoder(nn.Module):
    """The whole model; `forward` ends in losses, so that no whole logits need exist."""

    def __init__(self, spec: ModelSpec, precision: torch.dtype, recompute_activations: bool = False) -> None:
        super().__init__()
        self.spec = spec
        self.precision = precision
        self.recompute_activations = recompute_activations
        self.embedding = Matrix(spec.width, spec.padded_vocab)
        self.layers = nn.ModuleList(Layer(spec) for _ in range(spec.layers))
        self.norm = RMSNorm(spec.width, spec.norm_eps)
        self.unembedding = None if spec.tied_embeddings else Matrix(spec.width, spec.padded_vocab)

    @property
    def last_matrix(self) -> Matrix:
        """From hidden states to logits."""
        return self.embedding if self.unembedding is None else self.unembedding

    def forward(self, rows: Rows, objective: Objective, reference: ReferenceStates | None = None) -> Losses:
        """Losses of every token of the rows."""
        hidden = self.hidden(rows).flatten(0, 1)
        return sliced_loss(hidden, self.last_matrix.weight, rows.learnt, self.spec.vocab, objective, reference)

    def hidden(self, rows: Rows) -> Tensor:
        """Hidden states (B, T, width) after the last norm."""
        x = embedding(rows.tokens, self.embedding.weight).to(self.precision)
        for layer in self.layers:
            if self.recompute_activations and torch.is_grad_enabled():
                x = checkpoint(layer, x, rows.rotation, rows.layout, use_reentrant=False)
            else:
                x = layer(x, rows.rotation, rows.layout)
        hidden: Tensor = self.norm(x)
        return hidden

    def next_logits(self, rows: Rows, ends: Tensor) -> Tensor:
        """Logits (ends, vocab) in float32 of what follows some slots, counted through all rows."""
        wide: Tensor = self.last_matrix(self.hidden(rows).flatten(0, 1)[ends])
        return wide[:, : self.spec.vocab].float()

    def logits(self, rows: Rows) -> Tensor:
        """Whole logits (B, T, vocab) in float32: for small inputs, not for training."""
        wide: Tensor = self.last_matrix(self.hidden(rows))
        return wide[..., : self.spec.vocab].float()

"""Tokens -> hidden states -> losses: one decoder for the Llama, Mistral and Qwen3 families.

    x = embedding(tokens)
    x = x + attention(norm(x));  x = x + feed_forward(norm(x))      layer by layer
    losses = cross-entropy of norm(x) against the unembedding

Weights stay float32. `precision` is the type of what flows between them: autocast casts a matrix where it is used;
norms, rotations and losses compute in float32 whatever flows.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, silu
from torch.utils.checkpoint import checkpoint

from trivium.engine.torch.attention import Layout
from trivium.engine.torch.batch import DeviceBatch
from trivium.engine.torch.loss import Losses, Objective, ReferenceStates, sliced_loss
from trivium.engine.torch.norm import RMSNorm
from trivium.engine.torch.rotary import Rotation
from trivium.model.spec import ModelSpec


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
        queries, keys, values = (
            project(x).unflatten(-1, (-1, self.head_dim)) for project in (self.query, self.key, self.value)
        )
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

    def __init__(
        self, spec: ModelSpec, precision: torch.dtype = torch.float32, recompute_activations: bool = False
    ) -> None:
        super().__init__()
        self.spec = spec
        self.precision = precision
        self.recompute_activations = recompute_activations
        self.embedding = nn.Embedding(spec.padded_vocab, spec.width)
        self.layers = nn.ModuleList(Layer(spec) for _ in range(spec.layers))
        self.norm = RMSNorm(spec.width, spec.norm_eps)
        self.unembedding = None if spec.tied_embeddings else nn.Linear(spec.width, spec.padded_vocab, bias=False)

    @property
    def lm_head(self) -> nn.Linear | nn.Embedding:
        """The module whose weight (padded vocabulary, width) makes logits of hidden states."""
        return self.embedding if self.unembedding is None else self.unembedding

    def forward(self, batch: DeviceBatch, objective: Objective, reference: ReferenceStates | None = None) -> Losses:
        """Losses of every token of a micro-batch."""
        hidden = self.hidden(batch).flatten(0, 1)
        return sliced_loss(hidden, self.lm_head.weight, batch.targets, self.spec.vocab, objective, reference)

    def hidden(self, batch: DeviceBatch) -> Tensor:
        """Hidden states (B, T, width) after the last norm."""
        x = self.embedding(batch.tokens).to(self.precision)
        with torch.autocast(x.device.type, self.precision, enabled=self.precision != torch.float32):
            for layer in self.layers:
                if self.recompute_activations and torch.is_grad_enabled():
                    x = checkpoint(layer, x, batch.rotation, batch.layout, use_reentrant=False)
                else:
                    x = layer(x, batch.rotation, batch.layout)
            hidden: Tensor = self.norm(x)
        return hidden

    def next_logits(self, batch: DeviceBatch, ends: Tensor) -> Tensor:
        """Logits (ends, vocab) in float32 of what follows some slots, counted through all rows."""
        return self._logits(self.hidden(batch).flatten(0, 1)[ends])

    def logits(self, batch: DeviceBatch) -> Tensor:
        """Whole logits (B, T, vocab) in float32: for small inputs, not for training."""
        return self._logits(self.hidden(batch))

    def _logits(self, hidden: Tensor) -> Tensor:
        wide = linear(hidden, self.lm_head.weight.to(hidden.dtype))
        return wide[..., : self.spec.vocab].float()

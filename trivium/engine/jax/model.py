"""Tokens -> hidden states: one decoder for the Llama, Mistral and Qwen3 families, as flax NNX modules.

    x = embedding(tokens)
    x = x + attention(norm(x));  x = x + feed_forward(norm(x))      layer by layer
    hidden = norm(x)

Parameters have the torch engine's names and shapes. Outside of a compiled step they are a flat dict by name; inside,
`Design.decoder` puts them back into modules, which costs nothing once compiled. Weights stay float32: a matrix is
cast where it is used; norms, rotations and losses compute in float32 whatever flows.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from trivium.engine.base import Precision
from trivium.engine.jax.attention import Attend
from trivium.engine.jax.initial import init_weight
from trivium.engine.jax.norm import RMSNorm
from trivium.engine.jax.rotary import Rotation
from trivium.engine.jax.sharding import gathered, keep_rows
from trivium.model.spec import ModelSpec

Params = dict[str, Array]


class Linear(nnx.Module):
    """A weight (outputs, inputs) as torch has it, without bias, cast to the type of what it is applied to."""

    def __init__(self, inputs: int, outputs: int) -> None:
        self.weight = nnx.Param(jnp.zeros((outputs, inputs)))

    def __call__(self, vectors: Array) -> Array:
        """Vectors, multiplied."""
        return jnp.einsum("...i,oi->...o", vectors, self.weight[...].astype(vectors.dtype))


class Attention(nnx.Module):
    """Every slot asks the slots it may see; queries share keys and values in groups."""

    def __init__(self, spec: ModelSpec) -> None:
        self.head_dim = spec.head_dim
        self.query = Linear(spec.width, spec.heads * spec.head_dim)
        self.key = Linear(spec.width, spec.kv_heads * spec.head_dim)
        self.value = Linear(spec.width, spec.kv_heads * spec.head_dim)
        self.output = Linear(spec.heads * spec.head_dim, spec.width)
        self.query_norm = RMSNorm(spec.head_dim, spec.norm_eps) if spec.qk_norm else None
        self.key_norm = RMSNorm(spec.head_dim, spec.norm_eps) if spec.qk_norm else None

    def __call__(self, x: Array, rotation: Rotation, attend: Attend) -> Array:
        """What each slot gathers, in the width of the residual stream."""
        queries, keys, values = (
            project(x).reshape(*x.shape[:-1], -1, self.head_dim) for project in (self.query, self.key, self.value)
        )
        if self.query_norm is not None and self.key_norm is not None:
            queries, keys = self.query_norm(queries), self.key_norm(keys)
        gathered = attend(rotation.apply_rotary(queries), rotation.apply_rotary(keys), values)
        return self.output(gathered.reshape(*gathered.shape[:-2], -1))


class FeedForward(nnx.Module):
    """SwiGLU: one projection gates another."""

    def __init__(self, spec: ModelSpec) -> None:
        self.gate = Linear(spec.width, spec.ffn)
        self.up = Linear(spec.width, spec.ffn)
        self.down = Linear(spec.ffn, spec.width)

    def __call__(self, x: Array) -> Array:
        """Each slot by itself."""
        return self.down(jax.nn.silu(self.gate(x)) * self.up(x))


class Layer(nnx.Module):
    """Attention, then feed-forward, each added to the stream that it read through a norm."""

    def __init__(self, spec: ModelSpec) -> None:
        self.attention_norm = RMSNorm(spec.width, spec.norm_eps)
        self.attention = Attention(spec)
        self.feed_forward_norm = RMSNorm(spec.width, spec.norm_eps)
        self.feed_forward = FeedForward(spec)

    def __call__(self, x: Array, rotation: Rotation, attend: Attend) -> Array:
        """The stream, one layer on."""
        x = x + self.attention(self.attention_norm(x), rotation, attend)
        return x + self.feed_forward(self.feed_forward_norm(x))


class Decoder(nnx.Module):
    """The whole model but for its losses, to which `lm_head` is handed."""

    def __init__(self, spec: ModelSpec, precision: Precision, recompute_activations: bool = False) -> None:
        self.precision = precision
        self.recompute_activations = recompute_activations
        self.embedding = Linear(spec.width, spec.padded_vocab)
        self.layers = nnx.List([Layer(spec) for _ in range(spec.layers)])
        self.norm = RMSNorm(spec.width, spec.norm_eps)
        self.unembedding = None if spec.tied_embeddings else Linear(spec.width, spec.padded_vocab)

    @property
    def lm_head(self) -> Array:
        """The weight that makes logits of hidden states: (padded vocabulary, width)."""
        return (self.embedding if self.unembedding is None else self.unembedding).weight[...]

    def __call__(self, tokens: Array, rotation: Rotation, attend: Attend) -> Array:
        """Hidden states (B, T, width) after the last norm."""

        def run(layer: Layer, x: Array) -> Array:
            return keep_rows(layer(x, rotation, attend))

        x = keep_rows(gathered(self.embedding.weight[...])[tokens].astype(self.precision))
        for layer in self.layers:
            x = (jax.checkpoint(run) if self.recompute_activations else run)(layer, x)
        return self.norm(x)


@dataclass(frozen=True, slots=True)
class Design:
    """What decides a decoder's code: hashable, so that the same design is compiled once."""

    spec: ModelSpec
    precision: Precision = "float32"
    recompute_activations: bool = False

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Every parameter's shape by its name; nothing is allocated."""
        _, _, shapes = _structure(self)
        return dict(shapes)

    def init_weight(self, name: str, words: Array) -> Array:
        """A parameter's first values; compiled with a sharding, each device makes only its part."""
        return init_weight(name, self.shapes()[name], self.spec, words)

    def decoder(self, params: Mapping[str, Array]) -> Decoder:
        """The modules, with these parameters in them."""
        definition, paths, _ = _structure(self)
        state = nnx.from_flat_state([(path, nnx.Param(params[name])) for name, path in paths.items()])
        model: Decoder = nnx.merge(definition, state)
        return model


@cache
def _structure(design: Design) -> tuple[Any, dict[str, tuple[Any, ...]], dict[str, tuple[int, ...]]]:
    """Modules without arrays, and the path and shape of each of their parameters by name."""
    model = nnx.eval_shape(lambda: Decoder(design.spec, design.precision, design.recompute_activations))
    definition, state = nnx.split(model)
    found = {".".join(map(str, path)): (path, part.shape) for path, part in nnx.to_flat_state(state)}
    return definition, {name: path for name, (path, _) in found.items()}, {name: s for name, (_, s) in found.items()}

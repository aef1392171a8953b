"""Tokens -> hidden states: one decoder for the Llama, Mistral, Qwen3 and SmolLM3 families, as flax NNX modules.

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
from flax import nnx
from jax import Array

from trivium.engine.base import Precision
from trivium.engine.jax.attention import Attend
from trivium.engine.jax.layers import Layer, Linear, RMSNorm, Rotation
from trivium.engine.jax.sharding import gathered, keep_rows
from trivium.engine.jax.weights import init_weight
from trivium.model.spec import ModelSpec

Params = dict[str, Array]


class Decoder(nnx.Module):
    """The whole model but for its losses, to which `lm_head` is handed."""

    def __init__(self, spec: ModelSpec, precision: Precision, activation_checkpointing: bool = False) -> None:
        self.precision = precision
        self.activation_checkpointing = activation_checkpointing
        self.embedding = Linear(spec.width, spec.padded_vocab)
        self.layers = nnx.List([Layer(spec, number) for number in range(spec.layers)])
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
            x = (jax.checkpoint(run) if self.activation_checkpointing else run)(layer, x)
        return self.norm(x)


@dataclass(frozen=True, slots=True)
class Design:
    """What decides a decoder's code: hashable, so that the same design is compiled once."""

    spec: ModelSpec
    precision: Precision = "float32"
    activation_checkpointing: bool = False

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
    model = nnx.eval_shape(lambda: Decoder(design.spec, design.precision, design.activation_checkpointing))
    definition, state = nnx.split(model)
    found = {".".join(map(str, path)): (path, part.shape) for path, part in nnx.to_flat_state(state)}
    return definition, {name: path for name, (path, _) in found.items()}, {name: s for name, (_, s) in found.items()}

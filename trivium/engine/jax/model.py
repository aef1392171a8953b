"""Tokens -> hidden states: one decoder for many families of models, as flax NNX modules.

    x = embedding(tokens) * scale
    x = x + attention(norm(x));  x = x + feed_forward(norm(x))      layer by layer; `layers` has where norms may be
    hidden = norm(x)

A layer may slide: it is handed the rotations of its kind, and attention over its window. Layers are compiled one after
the other, whatever their kinds are: two kinds in a model cost no more to compile than one.

Parameters have the torch engine's names and shapes. Outside of a compiled step they are a flat dict by name; inside,
`Design.decoder` puts them back into modules, which costs nothing once compiled. Weights stay float32: a matrix is
cast where it is used; norms, rotations and losses compute in float32 whatever flows.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, NamedTuple

import jax
from flax import nnx
from jax import Array

from trivium.engine.base import MakeModel, Precision, Recompute
from trivium.engine.jax.attention import KEPT, Attend, AttendAs
from trivium.engine.jax.layers import Layer, Linear, RMSNorm, Rotation, Rotations
from trivium.engine.jax.sharding import gathered, keep_slots
from trivium.errors import UsageError
from trivium.model.spec import ModelSpec

Params = dict[str, Array]


class Decoder(nnx.Module):
    """The whole model but for its losses, to which `lm_head` is handed."""

    def __init__(
        self, spec: ModelSpec, precision: Precision, recompute: Recompute = "none", dropped: tuple[int, ...] = ()
    ) -> None:
        self.spec = spec
        self.precision = precision
        self.recompute: Recompute = recompute
        self.embedding = Linear(spec.width, spec.padded_vocab)
        self.layers = nnx.List([Layer(spec, number not in dropped) for number in range(spec.layers)])
        self.norm = RMSNorm(spec.width, spec.norm_eps)
        self.unembedding = None if spec.tied_embeddings else Linear(spec.width, spec.padded_vocab)

    @property
    def lm_head(self) -> Array:
        """The weight that makes logits of hidden states: (padded vocabulary, width)."""
        return (self.embedding if self.unembedding is None else self.unembedding).weight[...]

    def __call__(self, tokens: Array, rotations: Rotations, attend: AttendAs) -> Array:
        """Hidden states (B, T, width) after the last norm."""

        def run(rotation: Rotation, attend: Attend, layer: Layer, x: Array) -> Array:
            return keep_slots(layer(x, rotation, attend))

        x = keep_slots(self._embedded(tokens))
        for number, layer in enumerate(self.layers):
            how = self.spec.attention_of(number)
            own = partial(run, rotations.of(how.window is not None), partial(attend, how=how))
            x = recomputed(own, self.recompute)(layer, x)
        return self.norm(x)

    def _embedded(self, tokens: Array) -> Array:
        vectors, scale = gathered(self.embedding.weight[...])[tokens], self.spec.embedding_scale
        return (vectors if scale == 1 else vectors * scale).astype(self.precision)


@dataclass(frozen=True, slots=True)
class Design:
    """What decides a model's code: hashable, so that the same design is compiled once."""

    spec: ModelSpec
    precision: Precision = "float32"
    recompute: Recompute = "none"
    make: MakeModel | None = None  # makes a module of the user's own instead of the decoder
    dropped: tuple[int, ...] = ()  # layers without rotary positions

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Every parameter's shape by its name; nothing is allocated."""
        return dict(_structure(self).shapes)

    def init_weight(self, name: str, words: Array) -> Array | None:
        """A parameter's first values where the module has a rule of its own for them."""
        own = _structure(self).init_weight
        return None if own is None else own(name, self.shapes()[name], jax.random.wrap_key_data(words))

    def decoder(self, params: Mapping[str, Array]) -> Decoder:
        """The modules, with these parameters in them."""
        assert self.make is None, "the decoder's modules are not the user's own"
        model: Decoder = _merged(self, params)
        return model

    def own_model(self, params: Mapping[str, Array]) -> "OwnModel":
        """The user's own module with these parameters in it, cast to the precision that flows."""
        return OwnModel(_merged(self, {name: each.astype(self.precision) for name, each in params.items()}), self)


def _merged(design: Design, params: Mapping[str, Array]) -> Any:
    structure = _structure(design)
    state = nnx.from_flat_state([(path, nnx.Param(params[name])) for name, path in structure.paths.items()])
    return nnx.merge(structure.definition, state)


@dataclass(frozen=True, slots=True)
class OwnModel:
    """A module of the user's own, inside of a compiled step: tokens, positions, documents -> hidden states."""

    inner: Any
    design: Design

    def __call__(self, tokens: Array, positions: Array, documents: Array) -> Array:
        """Hidden states (B, T, width), in the precision that flows."""
        if self.design.recompute != "none":
            layers = (_on_stream(layer, self.design.recompute) for layer in self.inner.layers)
            vars(self.inner)["layers"] = tuple(layers)
        hidden: Array = keep_slots(self.inner(tokens, positions, documents))
        return hidden.astype(self.design.precision)

    @property
    def lm_head(self) -> Array:
        """The weight that makes logits of hidden states: (vocabulary, which may be padded, width)."""
        weight: Array = getattr(self.inner.lm_head, "weight", self.inner.lm_head)[...]
        return gathered(weight)


def recomputed(run: Callable[..., Any], recompute: Recompute) -> Callable[..., Any]:
    """The same function, of which the backward pass computes again all, or all but attention and products, or nothing.

    Products are those with a matrix of weights.
    """
    if recompute == "none":
        return run
    policies = jax.checkpoint_policies
    kept = policies.save_from_both_policies(
        policies.dots_with_no_batch_dims_saveable, policies.save_only_these_names(KEPT)
    )
    return jax.checkpoint(run, policy=kept if recompute == "selective" else None)


def _on_stream(layer: Callable[..., Any], recompute: Recompute) -> Callable[..., Any]:
    """A layer of the user's own, recomputed from the stream, its first argument."""

    def run(x: Array, *others: Any, **named: Any) -> Any:
        return recomputed(lambda x: layer(x, *others, **named), recompute)(x)

    return run


class _Structure(NamedTuple):
    """Modules without arrays, and the path and shape of each of their parameters by name."""

    kind: str  # the class of the outermost module
    definition: Any
    paths: dict[str, tuple[Any, ...]]
    shapes: dict[str, tuple[int, ...]]
    init_weight: Callable[..., Array | None] | None  # of a module that has a rule of its own


@cache
def _structure(design: Design) -> _Structure:
    spec, make = design.spec, design.make
    if make is None:
        model = nnx.eval_shape(lambda: Decoder(spec, design.precision, design.recompute, design.dropped))
    else:
        model = nnx.eval_shape(lambda: _own_module(make(spec), spec))
    definition, state = nnx.split(model)
    parts = [(".".join(map(str, path)), path, part.shape) for path, part in nnx.to_flat_state(state)]
    return _Structure(
        type(model).__name__,
        definition,
        paths={name: path for name, path, _ in parts},
        shapes={name: shape for name, _, shape in parts},
        init_weight=getattr(model, "init_weight", None),
    )


def _own_module(model: Any, spec: ModelSpec) -> Any:
    """A module as the user's function made it, refused where it has not what the engine uses."""
    problems = []
    if not isinstance(model, nnx.Module):
        problems.append("is not an nnx.Module")
    else:
        if not hasattr(model, "layers"):
            problems.append("has no layers (an nnx.List)")
        elif not len(model.layers):
            problems.append("has an empty list of layers: put one module or more in it")
        if not hasattr(model, "lm_head"):
            problems.append("has no lm_head (the weight from hidden states to logits: vocabulary, width)")
        others = {type(part).__name__ for _, part in nnx.to_flat_state(nnx.state(model)) if type(part) is not nnx.Param}
        if any(isinstance(module, nnx.Dropout) and not module.deterministic for _, module in nnx.iter_modules(model)):
            problems.append("has an nnx.Dropout, and the JAX engine's steps draw no random numbers: leave it out")
        if others:
            problems.append(f"keeps {', '.join(sorted(others))}: only nnx.Param is kept from step to step")
    if problems:
        raise _refusal(type(model).__name__, spec, "; ".join(problems))
    return model


def check_own_model(design: Design) -> None:
    """Pass shapes through a module of the user's own: hidden states must fit its lm_head."""
    spec, shapes, kind = design.spec, design.shapes(), _structure(design).kind

    def passed(params: Params, tokens: Array) -> tuple[Array, Array]:
        model = design.own_model(params)
        return model.inner(tokens, tokens, tokens), model.lm_head

    params = {name: jax.ShapeDtypeStruct(shape, "float32") for name, shape in shapes.items()}
    hidden, head = jax.eval_shape(passed, params, jax.ShapeDtypeStruct((1, 2), "int32"))
    if head.ndim != 2 or not spec.vocab <= head.shape[0] <= spec.padded_vocab:
        rows = f"{spec.vocab:,} to {spec.padded_vocab:,} rows and the width of the hidden states"
        raise _refusal(kind, spec, f"has an lm_head of {head.shape}: it must have {rows}")
    if hidden.shape != (1, 2, head.shape[1]):
        what = f"returned {hidden.shape} where hidden states {(1, 2, head.shape[1])} are expected"
        raise _refusal(kind, spec, f"{what}: rows, slots, the lm_head's width")


def count_own(spec: ModelSpec, make: MakeModel) -> int:
    """The parameters of a module of the user's own; nothing is allocated."""
    design = Design(spec, make=make)
    check_own_model(design)
    return sum(math.prod(shape) for shape in design.shapes().values())


def _refusal(kind: str, spec: ModelSpec, what: str) -> UsageError:
    made = f"{spec.made_by}: {spec.own} made a {kind}, which {what}"
    return UsageError(f"{made}. docs/trainer.md has what a model needs.")

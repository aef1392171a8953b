"""The decoder by its formulas, one document at a time, in float64 NumPy: what any engine's must agree with."""

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from trivium.model.rotary import rotary_tables
from trivium.model.spec import ModelSpec, RopeSpec
from trivium.rows.batch import IGNORED, Batch

Array = NDArray[np.float64]


def plain_nats(spec: ModelSpec, weights: Mapping[str, NDArray[np.floating]], batch: Batch) -> Array:
    """The loss of every target, 0 where there is none; documents of a row by themselves."""
    found = np.zeros(batch.targets.shape)
    for row, numbers in enumerate(batch.segments):
        for number in set(numbers[numbers >= 0].tolist()):
            here = numbers == number
            log_shares = log_softmax(plain_logits(spec, weights, batch.tokens[row, here]))
            targets = batch.targets[row, here]
            losses = -log_shares[np.arange(len(targets)), np.maximum(targets, 0)]
            found[row, here] = np.where(targets == IGNORED, 0, losses)
    return found


def plain_logits(
    spec: ModelSpec,
    weights: Mapping[str, NDArray[np.floating]],
    tokens: NDArray[np.integer],
    rope: RopeSpec | None = None,
) -> Array:
    """(T, vocab) after each token of a document."""
    held = {name: np.asarray(each, np.float64) for name, each in weights.items()}
    rope = rope or spec.rope
    x = held["embedding.weight"][tokens] * spec.embedding_scale
    for number in range(spec.layers):
        layer = {
            name.removeprefix(f"layers.{number}."): each
            for name, each in held.items()
            if name.startswith(f"layers.{number}.")
        }

        def norm(name: str, vectors: Array, layer: Mapping[str, Array] = layer) -> Array:
            return rms_norm(vectors, layer[name], spec.norm_eps) if name in layer else vectors

        added = attention(spec, rope, number, layer, norm("attention_norm.weight", x))
        x = x + norm("attention_post_norm.weight", added)
        added = feed_forward(spec, layer, norm("feed_forward_norm.weight", x))
        x = x + norm("feed_forward_post_norm.weight", added)
    head = held["embedding.weight" if spec.tied_embeddings else "unembedding.weight"][: spec.vocab]
    logits = rms_norm(x, held["norm.weight"], spec.norm_eps) @ head.T * spec.logit_scale
    return cap(logits, spec.logit_softcap)


def attention(spec: ModelSpec, rope: RopeSpec, number: int, layer: Mapping[str, Array], x: Array) -> Array:
    how = spec.attention_of(number)
    queries, keys, values = (
        x @ layer[f"attention.{name}.weight"].T + layer.get(f"attention.{name}.bias", 0.0)
        for name in ("query", "key", "value")
    )
    if spec.qk_norm and spec.qk_norm_joint:
        queries = rms_norm(queries, layer["attention.query_norm.weight"], spec.norm_eps)
        keys = rms_norm(keys, layer["attention.key_norm.weight"], spec.norm_eps)
    queries, keys, values = (each.reshape(len(x), -1, spec.head_dim) for each in (queries, keys, values))
    if spec.qk_norm and not spec.qk_norm_joint:
        queries = rms_norm(queries, layer["attention.query_norm.weight"], spec.norm_eps)
        keys = rms_norm(keys, layer["attention.key_norm.weight"], spec.norm_eps)
    if number not in rope.dropped:
        own = rope.sliding if how.window is not None and rope.sliding is not None else rope
        queries, keys = (rotated(each, own, spec.rotary_dim or spec.head_dim) for each in (queries, keys))
    keys, values = (np.repeat(each, spec.heads // spec.kv_heads, axis=1) for each in (keys, values))
    scores = np.einsum("thd,shd->hts", queries, keys) * (how.scale or spec.head_dim**-0.5)
    back = np.arange(len(x))[:, None] - np.arange(len(x))
    sees = (back >= 0) & (back < (how.window or len(x)))
    shares = np.exp(log_softmax(np.where(sees, cap(scores, how.softcap), -np.inf)))
    return np.einsum("hts,shd->thd", shares, values).reshape(len(x), -1) @ layer["attention.output.weight"].T


def rotated(heads: Array, rope: RopeSpec, channels: int) -> Array:
    cos, sin = (table[:, None].astype(np.float64) for table in rotary_tables(rope, channels, len(heads)))
    first, second, rest = heads[..., : channels // 2], heads[..., channels // 2 : channels], heads[..., channels:]
    return np.concatenate((first * cos - second * sin, second * cos + first * sin, rest), axis=-1)


def feed_forward(spec: ModelSpec, layer: Mapping[str, Array], x: Array) -> Array:
    up = x @ layer["feed_forward.up.weight"].T
    inner = x @ layer["feed_forward.gate.weight"].T if spec.gated else up
    match spec.activation:
        case "silu":
            active = inner / (1 + np.exp(-inner))
        case "gelu":
            active = inner * 0.5 * (1 + np.vectorize(math.erf)(inner / math.sqrt(2)))
        case "gelu_tanh":
            active = inner * 0.5 * (1 + np.tanh(math.sqrt(2 / math.pi) * (inner + 0.044715 * inner**3)))
        case "xielu":
            above, below = (np.log1p(np.exp(layer[f"feed_forward.activation.alpha_{sign}"])) for sign in "pn")
            negative = (np.expm1(np.minimum(inner, -1e-6)) - inner) * (0.5 + below) + 0.5 * inner
            active = np.where(inner > 0, above * inner**2 + 0.5 * inner, negative)
    return (active * up if spec.gated else active) @ layer["feed_forward.down.weight"].T


def rms_norm(vectors: Array, weight: Array, eps: float) -> Array:
    return vectors / np.sqrt((vectors**2).mean(axis=-1, keepdims=True) + eps) * weight


def cap(values: Array, limit: float | None) -> Array:
    return values if limit is None else limit * np.tanh(values / limit)


def log_softmax(values: Array) -> Array:
    values = values - values.max(axis=-1, keepdims=True)
    return values - np.log(np.exp(values).sum(axis=-1, keepdims=True))


def any_weights(shapes: Mapping[str, tuple[int, ...]], seed: int = 0) -> dict[str, NDArray[np.float32]]:
    """Of every parameter by its shape: none is zero or one, as biases and norms are at first."""
    random = np.random.default_rng(seed)
    return {
        name: (random.standard_normal(shape) * 0.3 + (1.0 if name.endswith("norm.weight") else 0.0)).astype(np.float32)
        for name, shape in sorted(shapes.items())
    }

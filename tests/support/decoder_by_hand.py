"""A decoder of any spec as it is defined, in NumPy and float64, with the weights that a seed draws; slow and plain."""

import math
from typing import Any

import numpy as np

from trivium.engine.draw import first_values
from trivium.model.rotary import rotary_tables
from trivium.model.spec import ModelSpec, RopeSpec
from trivium.rows.batch import IGNORED, Batch

Array = Any  # NumPy's, of float64


def nats_by_hand(spec: ModelSpec, batch: Batch, seed: int, rope: RopeSpec | None = None) -> Array:
    """The loss of every target (B, T), 0 where there is none; documents are kept apart."""
    found = np.zeros(batch.tokens.shape)
    for row, number in {(row, int(number)) for row, number in np.ndindex(batch.segments.shape)}:
        here = np.flatnonzero(batch.segments[row] == batch.segments[row, number])
        if batch.segments[row, number] < 0 or here[0] != number:
            continue
        logits = Decoder(spec, seed, rope or spec.rope).logits(batch.tokens[row, here])
        log_sums = np.log(np.exp(logits).sum(1))
        for slot, target in zip(here, batch.targets[row, here], strict=True):
            if target != IGNORED:
                found[row, slot] = log_sums[slot - number] - logits[slot - number, target]
    return found


class Decoder:
    """One document at a time."""

    def __init__(self, spec: ModelSpec, seed: int, rope: RopeSpec) -> None:
        self.spec, self.seed, self.rope = spec, seed, rope

    def weight(self, name: str, *shape: int) -> Array:
        whole = tuple(slice(0, size) for size in shape)
        return first_values(name, shape, whole, self.spec, self.seed).astype(np.float64)

    def logits(self, tokens: Array) -> Array:
        spec = self.spec
        embedding = self.weight("embedding.weight", spec.padded_vocab, spec.width)[: spec.vocab]
        x = embedding[tokens] * spec.embedding_scale
        for number in range(spec.layers):
            x = self.layer(number, x)
        head = embedding
        if not spec.tied_embeddings:
            head = self.weight("unembedding.weight", spec.padded_vocab, spec.width)[: spec.vocab]
        return capped(self.norm("norm", x) @ head.T * spec.logit_scale, spec.logit_softcap)

    def layer(self, number: int, x: Array) -> Array:
        name, spec = f"layers.{number}", self.spec
        for part, sublayer in (("attention", self.attention), ("feed_forward", self.feed_forward)):
            read = x if spec.norm == "after" else self.norm(f"{name}.{part}_norm", x)
            added = sublayer(f"{name}.{part}", number, read)
            x = x + (added if spec.norm == "before" else self.norm(f"{name}.{part}_post_norm", added))
        return x

    def norm(self, name: str, x: Array) -> Array:
        scaled = x / np.sqrt((x**2).mean(-1, keepdims=True) + self.spec.norm_eps)
        return scaled * self.weight(f"{name}.weight", x.shape[-1])

    def linear(self, name: str, x: Array, outputs: int, bias: bool = False) -> Array:
        found = x @ self.weight(f"{name}.weight", outputs, x.shape[-1]).T
        return found + self.weight(f"{name}.bias", outputs) if bias else found

    def attention(self, name: str, number: int, x: Array) -> Array:
        spec, slots = self.spec, len(x)
        heads = {"query": spec.heads, "key": spec.kv_heads, "value": spec.kv_heads}
        found = {}
        for each, count in heads.items():
            part = self.linear(f"{name}.{each}", x, count * spec.head_dim, spec.qkv_bias)
            is_normed = spec.qk_norm and each != "value"
            if is_normed and spec.qk_norm_joint:
                part = self.norm(f"{name}.{each}_norm", part)
            part = part.reshape(slots, count, spec.head_dim)
            if is_normed and not spec.qk_norm_joint:
                part = self.norm(f"{name}.{each}_norm", part)
            found[each] = part if each == "value" else self.rotated(number, part)
        how = spec.attention_of(number)
        out = np.zeros((slots, spec.heads, spec.head_dim))
        for slot, head in np.ndindex(slots, spec.heads):
            seen = slice(0 if how.window is None else max(0, slot - how.window + 1), slot + 1)
            group = head // (spec.heads // spec.kv_heads)
            scores = found["key"][seen, group] @ found["query"][slot, head] * (how.scale or spec.head_dim**-0.5)
            shares = np.exp(capped(scores, how.softcap))
            out[slot, head] = shares / shares.sum() @ found["value"][seen, group]
        return self.linear(f"{name}.output", out.reshape(slots, -1), spec.width)

    def rotated(self, number: int, heads: Array) -> Array:
        if number in self.rope.dropped:
            return heads
        rope = self.rope.sliding if number in self.spec.sliding and self.rope.sliding is not None else self.rope
        cos, sin = (each[:, None].astype(np.float64) for each in rotary_tables(rope, self.spec.rotated, len(heads)))
        half = self.spec.rotated // 2
        first, second, rest = np.split(heads, [half, 2 * half], axis=-1)
        return np.concatenate((first * cos - second * sin, second * cos + first * sin, rest), -1)

    def feed_forward(self, name: str, _number: int, x: Array) -> Array:
        spec = self.spec
        up = self.linear(f"{name}.up", x, spec.ffn)
        between = self.activation(name, up)
        if spec.gated:
            between = self.activation(name, self.linear(f"{name}.gate", x, spec.ffn)) * up
        return self.linear(f"{name}.down", between, spec.width)

    def activation(self, name: str, x: Array) -> Array:
        match self.spec.activation:
            case "silu":
                return x / (1 + np.exp(-x))
            case "gelu":
                return x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2
            case "gelu_tanh":
                return x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2
            case "xielu":
                rises, falls = (
                    np.log1p(np.exp(self.weight(f"{name}.activation.alpha_{each}", 1))) for each in ("p", "n")
                )
                below = (np.expm1(np.minimum(x, -1e-6)) - x) * (0.5 + falls) + 0.5 * x
                return np.where(x > 0, rises * x**2 + 0.5 * x, below)


def capped(values: Array, cap: float | None) -> Array:
    return values if cap is None else cap * np.tanh(values / cap)

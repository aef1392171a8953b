"""The hybrid of `torch_hybrid` in flax: `model.family = "own_model.flax_hybrid:Hybrid"` with `engine.name = "jax"`."""

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array


class Recurrence(nnx.Module):
    """A gated linear recurrence."""

    def __init__(self, width: int, rngs: nnx.Rngs) -> None:
        self.norm = nnx.RMSNorm(width, epsilon=1e-6, rngs=rngs)
        self.keep = nnx.Linear(width, width, rngs=rngs)
        self.value = nnx.Linear(width, width, use_bias=False, rngs=rngs)
        self.out = nnx.Linear(width, width, use_bias=False, rngs=rngs)

    def __call__(self, x: Array, sees: Array, continues: Array) -> Array:
        """`continues` (rows, slots) is false where a document begins: nothing is kept from before it."""
        y = self.norm(x)
        keep = jax.nn.sigmoid(self.keep(y)) * continues[..., None]
        return x + self.out(jax.nn.silu(scan(keep, (1 - keep) * self.value(y))))


def scan(keep: Array, new: Array) -> Array:
    """h[t] = keep[t] * h[t - 1] + new[t] along the slots, by XLA's associative scan."""

    def joined(first: tuple[Array, Array], second: tuple[Array, Array]) -> tuple[Array, Array]:
        return first[0] * second[0], first[1] * second[0] + second[1]

    return jax.lax.associative_scan(joined, (keep, new), axis=1)[1]


class Attention(nnx.Module):
    """Causal attention within documents, without positions."""

    def __init__(self, width: int, heads: int, rngs: nnx.Rngs) -> None:
        self.heads = heads
        self.norm = nnx.RMSNorm(width, epsilon=1e-6, rngs=rngs)
        self.mix = nnx.Linear(width, 3 * width, use_bias=False, rngs=rngs)
        self.out = nnx.Linear(width, width, use_bias=False, rngs=rngs)

    def __call__(self, x: Array, sees: Array, continues: Array) -> Array:
        """`sees` (rows, slots, slots) says which keys a query sees."""
        rows, slots, width = x.shape
        parts = self.mix(self.norm(x)).reshape(rows, slots, 3, self.heads, width // self.heads)
        query, key, value = (parts[:, :, number] for number in range(3))
        found = jax.nn.dot_product_attention(query, key, value, mask=sees[:, None])
        return x + self.out(found.reshape(rows, slots, width))


class Hybrid(nnx.Module):
    """Recurrent layers, and attention in every second one."""

    def __init__(self, spec) -> None:
        rngs = nnx.Rngs(0)
        self.embedding = nnx.Embed(spec.padded_vocab, spec.width, rngs=rngs)
        self.layers = nnx.List(
            [
                Attention(spec.width, spec.heads, rngs) if number % 2 else Recurrence(spec.width, rngs)
                for number in range(spec.layers)
            ]
        )
        self.norm = nnx.RMSNorm(spec.width, epsilon=1e-6, rngs=rngs)
        self.lm_head = nnx.Param(jnp.zeros((spec.padded_vocab, spec.width)))

    def __call__(self, tokens: Array, positions: Array, documents: Array) -> Array:
        slots = jnp.arange(tokens.shape[1])
        sees = (documents[:, :, None] == documents[:, None]) & (slots[:, None] >= slots)
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, sees, positions > 0)
        return self.norm(x)

    def init_weight(self, name: str, shape: tuple[int, ...], random: Array) -> Array | None:
        """Memories of many lengths, from 2 tokens to 50; everything else by trivium's rule."""
        return jnp.linspace(0, 4, shape[0]) if name.endswith("keep.bias") else None


def smoothed(hidden: Array, lm_head: Array, batch) -> Array:
    """Cross-entropy with smoothed labels: `loss = "own_model.flax_hybrid:smoothed"` in a stage."""
    logs = jax.nn.log_softmax((hidden @ lm_head.T).astype("float32"))
    right = jnp.take_along_axis(logs, batch.targets[:, None], axis=1)[:, 0]
    return -(0.9 * right + 0.1 * logs.mean(axis=1))

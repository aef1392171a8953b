"""Models, losses and trainers of one's own in flax NNX and optax, as a user would write them."""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax import Array

from tests.support.training import StoppingTrainer
from trivium.engine.base import LossBatch
from trivium.model.spec import ModelSpec
from trivium.train.trainer import Trainer


class Block(nnx.Module):
    """Attention and feed-forward with biases, each behind a LayerNorm."""

    def __init__(self, width: int, heads: int, rngs: nnx.Rngs) -> None:
        self.heads = heads
        self.ln1, self.ln2 = nnx.LayerNorm(width, rngs=rngs), nnx.LayerNorm(width, rngs=rngs)
        self.mix, self.out = nnx.Linear(width, 3 * width, rngs=rngs), nnx.Linear(width, width, rngs=rngs)
        self.up, self.down = nnx.Linear(width, 2 * width, rngs=rngs), nnx.Linear(2 * width, width, rngs=rngs)

    def __call__(self, x: Array, sees: Array) -> Array:
        heads = (*x.shape[:2], self.heads, -1)
        query, key, value = (part.reshape(heads) for part in jnp.split(self.mix(self.ln1(x)), 3, axis=-1))
        gathered = jax.nn.dot_product_attention(query, key, value, mask=sees[:, None])
        x = x + self.out(gathered.reshape(x.shape))
        return x + self.down(jax.nn.gelu(self.up(self.ln2(x))))


class Small(nnx.Module):
    """A decoder that shares nothing with the built-in one."""

    def __init__(self, spec: ModelSpec) -> None:
        rngs = nnx.Rngs(0)
        self.width = spec.width
        self.embedding = nnx.Embed(spec.padded_vocab, spec.width, rngs=rngs)
        self.gain = nnx.Param(jnp.ones(spec.width))
        self.layers = nnx.List([Block(spec.width, spec.heads, rngs) for _ in range(spec.layers)])
        self.lm_head = nnx.Param(jnp.zeros((spec.vocab, spec.width)))

    def __call__(self, tokens: Array, positions: Array, documents: Array) -> Array:
        """Hidden states (rows, slots, width)."""
        slots = jnp.arange(tokens.shape[1])
        sees = (documents[:, :, None] == documents[:, None]) & (slots[:, None] >= slots)
        waves = positions[..., None] / 10 ** jnp.linspace(0, 3, self.width)
        x: Array = self.embedding(tokens) + jnp.sin(waves).astype(self.gain[...].dtype)
        for layer in self.layers:
            x = layer(x, sees)
        scaled: Array = x * self.gain[...]
        return scaled


def nats(hidden: Array, lm_head: Array, targets: Array) -> Array:
    logits = (hidden @ lm_head.T).astype(jnp.float32)
    losses: Array = optax.softmax_cross_entropy_with_integer_labels(logits, targets)
    return losses


class OwnModelTrainer(StoppingTrainer):
    def model(self) -> Any:
        return Small


class NllGapTrainer(Trainer):
    """The penalty as a difference of losses, with the reference's loss held fixed."""

    def loss(self) -> Any:
        def penalised(hidden: Array, lm_head: Array, batch: LossBatch) -> Any:
            policy_loss = nats(hidden, lm_head, batch.targets)
            if batch.reference is None:
                return policy_loss
            reference_loss = nats(batch.reference.hidden, batch.reference.lm_head, batch.targets)
            penalty = policy_loss - jax.lax.stop_gradient(reference_loss)
            return policy_loss + batch.reference.beta * penalty, {"kl": penalty, "reference_loss": reference_loss}

        return penalised


class KlTrainer(Trainer):
    """The same with the KL divergence from the reference over the whole vocabulary."""

    def loss(self) -> Any:
        def penalised(hidden: Array, lm_head: Array, batch: LossBatch) -> Any:
            policy = jax.nn.log_softmax((hidden @ lm_head.T).astype(jnp.float32))
            policy_loss = -jnp.take_along_axis(policy, batch.targets[:, None], 1)[:, 0]
            if batch.reference is None:
                return policy_loss
            frozen = jax.nn.log_softmax((batch.reference.hidden @ batch.reference.lm_head.T).astype(jnp.float32))
            kl = (jnp.exp(frozen) * (frozen - policy)).sum(-1)
            reference_loss = -jnp.take_along_axis(frozen, batch.targets[:, None], 1)[:, 0]
            return policy_loss + batch.reference.beta * kl, {"kl": kl, "reference_loss": reference_loss}

        return penalised

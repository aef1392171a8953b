"""The decoder of the JAX engine in a loop as people write it by hand: one jitted step on one fixed random batch.

The loss is the engine's own, in slices; the update is optax's AdamW behind a clip. The engine, the Trainer and
everything around them are left out: what they cost shows beside it.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from bench_run import CLIP
from jax import Array
from plain_loops import random_batch

from trivium.engine.jax.attention import attend
from trivium.engine.jax.layers import Rotations
from trivium.engine.jax.loss import LogitForm, LossTargets, Weights, sliced_loss
from trivium.engine.jax.model import Design, Params
from trivium.engine.jax.sharding import device_mesh, sharded_init
from trivium.engine.mesh import ONE_RANK
from trivium.model.spec import ModelSpec


@dataclass
class JaxLoop:
    """A compiled step and what it changes."""

    step: Any
    params: Params
    optimizer: Any
    batch: Any

    def take(self, steps: int) -> None:
        """Train so many steps; each looks at its loss."""
        for _ in range(steps):
            self.params, self.optimizer, loss = self.step(self.params, self.optimizer, self.batch)
            float(loss)


def bare_jax(spec: ModelSpec, num_rows: int, seq_len: int) -> JaxLoop:
    """Documents joined, AdamW with weight decay on matrices alone."""
    design, mesh = Design(spec), device_mesh(ONE_RANK, "cpu")
    params, _ = sharded_init(design, 0, mesh=mesh)
    made = optax.chain(
        optax.clip_by_global_norm(CLIP),
        optax.adamw(
            3e-4, b1=0.9, b2=0.95, weight_decay=0.1, mask=lambda tree: jax.tree.map(lambda a: a.ndim > 1, tree)
        ),
    )
    batch = random_batch(spec.vocab, num_rows, seq_len)
    rotations = Rotations.tables(spec.rope, spec, seq_len, mesh)
    weights = Weights(np.float32(1 / (num_rows * seq_len)))

    def loss_of(params: Params, tokens: Array, targets: Array) -> Array:
        model = design.decoder(params)
        hidden = model(tokens, rotations, partial(attend, segments=None)).reshape(-1, spec.width)
        all_learnt = LossTargets(targets.reshape(-1), jnp.ones(targets.size, bool))
        return sliced_loss(LogitForm.of(spec), (), hidden, model.lm_head, all_learnt, weights, ()).objective

    @partial(jax.jit, donate_argnums=(0, 1))
    def step(params: Params, state: Any, batch: Any) -> tuple[Params, Any, Array]:
        loss, gradients = jax.value_and_grad(loss_of)(params, *batch)
        updates, state = made.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, loss

    return JaxLoop(step, params, made.init(params), (jnp.asarray(batch.tokens), jnp.asarray(batch.targets)))

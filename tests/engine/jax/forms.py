"""Decoders of other forms than Llama's on several devices of one process, against the same on one.

Executed by itself, with four devices (FOUR in its XLA_FLAGS): `python -m tests.engine.jax.forms`. Prints what a test
compares.
"""

import json
from typing import Any

import jax
import numpy as np

from tests.support.batches import make_batch, settings_at
from tests.support.forms import LENGTH, ROWS, TOGETHER, any_weights
from trivium.engine.base import EngineSettings, OptimizerSettings, StageSettings
from trivium.engine.jax.context_parallel import context
from trivium.engine.jax.engine import JaxEngine
from trivium.engine.mesh import MeshShape
from trivium.model.spec import ModelSpec

FOUR = "--xla_force_host_platform_device_count=4"
# Its first updates are the gradients' signs but for eps: a small one makes a large difference of rounding.
ADAMW = OptimizerSettings(eps=1e-3)
ONE = MeshShape()
LAYOUTS: list[tuple[str, MeshShape, Any]] = [
    ("both", MeshShape(shard=2, tensor=2), "gather"),
    ("after", MeshShape(shard=2, tensor=2), "gather"),
    ("both", MeshShape(shard=2, context=2), "gather"),
    ("after", MeshShape(shard=2, context=2), "ulysses"),
]


def engine_of(spec: ModelSpec, **settings: Any) -> JaxEngine:
    """With weights of which none is zero or one."""
    engine = JaxEngine(EngineSettings(spec, device="cpu", **settings))
    held = engine.state.params
    drawn = any_weights({name: each.shape for name, each in held.items()})
    params = {name: jax.device_put(each, held[name].sharding) for name, each in drawn.items()}
    engine.state = engine.state._replace(params=params)
    engine.enter(StageSettings(LENGTH))
    return engine


def outcome(form: str, mesh: MeshShape = ONE, method: Any = "gather") -> dict[str, Any]:
    """Losses of documents, two steps, and what the model says after prompts."""
    engine = engine_of(TOGETHER[form], mesh=mesh, context_method=method, optimizer=ADAMW)
    nats = engine.nats(make_batch(ROWS, 9, LENGTH))
    stats = [engine.step(make_batch(ROWS, step, LENGTH), settings_at(step, lr=1e-3)) for step in range(2)]
    generation = engine.generation([np.arange(length) for length in (9, 1, 4)], 8)
    for token in range(8):
        generation.append(np.array([token] * 3))
    return {
        "nats": nats.tolist(),
        "figures": [[each.loss, each.grad_norm] for each in stats],
        "weights": {name: np.asarray(each).ravel().tolist() for name, each in engine.state.params.items()},
        "logits": generation.logits().tolist(),
    }


def main() -> dict[str, Any]:
    """Every form on one device, and on each of its layouts."""
    context.MAX_BLOCK = 4
    return {"one": {form: outcome(form) for form in TOGETHER}, "four": [outcome(*layout) for layout in LAYOUTS]}


if __name__ == "__main__":
    print(json.dumps(main()))  # noqa: T201

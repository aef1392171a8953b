"""Models whose rows' slots are shared by devices, against one device: losses, weights, figures, collectives.

Executed by itself, with eight devices: `python -m tests.engine.jax.context_parallel.contexts FOLDER`. It prints what a
test compares.
A run has two stages: short rows with masked documents, then longer ones, whose length no 2C divides, with joined
documents, KL and z-loss. Blocks are small, so that a device has several.
"""

import json
import os
import re
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from tests.support.batches import TINY, VOCAB, make_batch, settings_at
from trivium.ask.generate.generate import generate
from trivium.ask.generate.row import Writing
from trivium.ask.generate.sampling import GREEDY
from trivium.engine.base import EngineSettings, KlSettings, LossBatch, OptimizerSettings, StageSettings
from trivium.engine.jax.context_parallel import context
from trivium.engine.jax.engine import JaxEngine
from trivium.engine.jax.optim import StepRates
from trivium.engine.jax.step import DeviceBatch
from trivium.engine.mesh import MeshShape

SHORT, LONG = 16, 42
ROWS = {SHORT: ((5, 7, 4), (16,), (3, 6), (10, 2, 1)), LONG: ((20, 22), (42,), (3, 6, 30), (30, 2))}
SPEC = replace(TINY, layers=1, heads=8, kv_heads=4, max_seq_len=LONG)
# Its first updates are the gradients' signs but for eps: a small one makes a large difference of rounding.
ADAMW, MUON = OptimizerSettings("adamw", eps=1e-3, grad_clip=1.0), OptimizerSettings("muon", eps=1e-3)
FOUR = MeshShape(shard=2, context=4)
CUBE = MeshShape(shard=2, context=2, tensor=2)
PROMPTS = [[1, 2, 3], [4, 5, 6, 7], [8, 9, 10]]


def make(mesh: MeshShape, optimizer: OptimizerSettings = ADAMW, **others: Any) -> JaxEngine:
    return JaxEngine(
        EngineSettings(SPEC, optimizer, 1, device="cpu", mesh=mesh, token_bytes=np.arange(VOCAB), **others)
    )


def stages(folder: Path, **others: Any) -> list[StageSettings]:
    kl = KlSettings(0.3, folder / "reference")
    return [StageSettings(SHORT), StageSettings(LONG, document_mask=False, kl=kl, z_loss=1e-2, **others)]


def steps(engine: JaxEngine, first: int) -> list[list[float]]:
    """Two steps' loss, norm, terms, nats of a source, losses of rows and compilations."""
    found = []
    for step in (first, first + 1):
        batch = make_batch(ROWS[engine.stage.seq_len], step, engine.stage.seq_len)
        stats = engine.step(batch, settings_at(step))
        assert stats.loss_tokens == (batch.targets >= 0).sum()
        figures = [stats.loss, stats.grad_norm, stats.nats_by_source["web"], *stats.extra.values()]
        assert stats.loss_by_row is not None
        found.append([*figures, *stats.loss_by_row.tolist(), stats.compilations])
    return found


def weights(engine: JaxEngine) -> dict[str, list[float]]:
    return {name: np.asarray(array).ravel().tolist() for name, array in engine.state.params.items()}


def outcome(engine: JaxEngine, taken: list[list[float]]) -> dict[str, Any]:
    """After the last stage: all that its steps did, and what it makes of a batch."""
    batch = make_batch(ROWS[LONG], 9, LONG)
    stats = engine.evaluate(batch)
    return {
        "figures": [row[:-1] for row in taken],
        "compilations": [row[-1] for row in taken],
        "weights": weights(engine),
        "nats": engine.nats(batch).tolist(),
        "evaluated": [stats.nats, stats.tokens, stats.bytes, stats.text_nats],
        "by position": stats.by_position.tolist(),
    }


def run(engine: JaxEngine, asked: list[StageSettings], save: Path | None = None) -> dict[str, Any]:
    """Both stages, two steps each; saved where they meet."""
    taken = []
    for number, stage in enumerate(asked):
        engine.enter(stage)
        taken += steps(engine, 2 * number)
        if save is not None and not number:
            engine.save(save).wait()
    return outcome(engine, taken)


def resumed(engine: JaxEngine, folder: Path, stage: StageSettings) -> dict[str, Any]:
    """The second stage, from what another layout saved."""
    engine.load(folder)
    engine.enter(stage)
    return outcome(engine, steps(engine, 2))


def written(engine: JaxEngine) -> list[list[int]]:
    """What it writes after the prompts."""
    rows = generate(engine, [np.array(prompt) for prompt in PROMPTS], Writing(2, sampling=GREEDY))
    return [list(map(int, row.tokens)) for (row,) in rows]


def own_loss(hidden: Array, lm_head: Array, batch: LossBatch) -> Array:
    """Cross-entropy that weighs later positions more."""
    logits = hidden @ lm_head.T
    nats = jax.nn.logsumexp(logits, axis=1) - jnp.take_along_axis(logits, batch.targets[:, None], 1)[:, 0]
    return nats * (1 + 0.1 * batch.positions)


def with_own_loss(mesh: MeshShape) -> list[list[float]]:
    engine = make(mesh, token_losses=own_loss)
    engine.enter(StageSettings(LONG))
    return [row[:-1] for row in steps(engine, 0)]


def collectives(mesh: MeshShape, method: Any = "gather") -> dict[str, int]:
    """How often a compiled step of masked rows exchanges arrays of each shape."""
    engine, batch = make(mesh, context_method=method), make_batch(((48,),) * 4, seq_len=48)
    engine.enter(StageSettings(48))
    given = DeviceBatch.of(batch, None, engine.mesh), np.zeros(2, np.uint32), 1, StepRates.of(settings_at())
    with jax.set_mesh(engine.mesh):
        text = engine.program.train_step.lower(engine.state, *given, engine.terms, 3).compile().as_text()
    kinds = "all-gather|all-to-all|reduce-scatter|collective-permute"
    found = re.findall(rf"= \(?(\w+\[[\d,]*\])[^=]*? ({kinds})\(", text or "")
    return Counter(f"{kind} {shape}" for shape, kind in found)


def main(folder: Path) -> dict[str, Any]:
    """Every layout takes the same two stages."""
    context.MAX_BLOCK = 4
    one = make(MeshShape())
    one.save(folder / "reference").wait()
    plain, shared, cut = stages(folder), MeshShape(shard=4, context=2), stages(folder, micro_batch_size=2)
    by_stage = [replace(stage, context=size) for stage, size in zip(cut, (1, 4), strict=True)]
    halved, muon, cube = make(shared, recompute="selective"), make(MeshShape(), MUON), make(CUBE, MUON)
    return {
        "one": run(one, plain),
        "one, muon": run(muon, plain),
        "2": run(halved, plain, save=folder / "halved"),
        "1 to 4": run(make(shared), by_stage),
        "2, then resumed on 4": resumed(make(FOUR, recompute="full"), folder / "halved", plain[1]),
        "2 x 2 x 2, muon": run(cube, plain),
        "4, ulysses": run(make(FOUR, context_method="ulysses"), plain),
        "written": [written(muon), written(cube)],
        "own": [with_own_loss(mesh) for mesh in (MeshShape(), FOUR)],
        "collectives": {method: collectives(FOUR, method) for method in ("gather", "ulysses")},
    }


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]))))  # noqa: T201

"""Models of transformers on 1, 2 and 4 ranks: what they start from, learn and hand on; rows shared by two ranks.

Executed by itself: `python -m tests.engine.torch.transformers.layouts FOLDER`. Prints the figures as JSON.
"""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.engine.tiny import STAGE
from tests.engine.torch.layouts import shard, weights
from tests.engine.torch.transformers.families import FAMILIES, tiny
from tests.support.batches import make_batch, settings_at
from tests.support.forked import launch
from trivium.engine.base import EngineSettings, OptimizerSettings, StageSettings
from trivium.engine.make import join_ranks
from trivium.engine.mesh import MeshShape
from trivium.engine.torch.engine import TorchEngine

KINDS = {
    "olmo3": EngineSettings(tiny("olmo3"), OptimizerSettings("muon", grad_clip=1.0), seed=1),
    "olmoe": EngineSettings(tiny("olmoe"), seed=1, micro_batch_size=1),
    "apertus": EngineSettings(tiny("apertus"), seed=1, recompute="full"),
    "gpt2": EngineSettings(tiny("gpt2"), seed=1),  # tied
    "bfloat16": EngineSettings(tiny("olmoe"), seed=1, precision="bfloat16"),
}
LAYOUTS = {
    "one": MeshShape(),
    "shard 2": MeshShape(shard=2),
    "shard 4": MeshShape(shard=4),
    "replicate 2 x shard 2": MeshShape(replicate=2, shard=2),
}
SLOTS = 40
STEPS = 4


def main() -> None:
    """A launch for each number of ranks; each reads what the one before saved."""
    folder = Path(sys.argv[1])
    torch.set_num_threads(1)
    for size in (1, 2, 4):
        codes = launch(size, lambda: measure(folder))
        assert codes == [0] * size, codes
    found = {path.stem: json.loads(path.read_text()) for path in folder.glob("*.json")}
    print(json.dumps(found))  # noqa: T201


def measure(folder: Path) -> None:
    """On one rank of a launch: every layout of its size."""
    ranks = join_ranks()
    for name, mesh in LAYOUTS.items():
        if mesh.size != ranks.size:
            continue
        found = {kind: learn(kind, mesh, ranks.rank, folder) for kind in KINDS}
        if ranks.is_main:
            (folder / f"{name}.json").write_text(json.dumps(found))
    if ranks.size in (1, 2):
        shared = {family: nats(family, ranks.size) for family in FAMILIES}
        if ranks.is_main:
            (folder / f"context {ranks.size}.json").write_text(json.dumps(shared))


def learn(kind: str, mesh: MeshShape, rank: int, folder: Path) -> dict[str, Any]:
    """Steps from the seed; then from what fewer ranks saved; an export; greedy tokens."""
    engine = TorchEngine(replace(KINDS[kind], mesh=mesh, device="cpu"))
    engine.enter(STAGE)
    initial = weights(engine)
    steps = [figures(engine, rank, step) for step in range(STEPS)]
    rows = engine.generation([np.array([1, 2, 3])] if rank == 0 else [], 2)
    greedy = rows.logits().argmax(1).tolist()
    saved = folder / f"{kind} of {mesh.size // 2}"
    handed_on = None
    if saved.is_dir():
        engine.load(saved)
        handed_on = figures(engine, rank, STEPS)
    else:
        engine.save(folder / f"{kind} of {mesh.size}").wait()
        handed_on = figures(engine, rank, STEPS)
    if saved.is_dir() and mesh.replicate == 1:
        engine.save(folder / f"{kind} of {mesh.size}").wait()
    engine.export(folder / f"{kind} exported by {mesh.size}")
    return {"initial": initial, "steps": steps, "greedy": greedy, "handed on": handed_on}


def figures(engine: TorchEngine, rank: int, step: int) -> dict[str, float]:
    stats = engine.step(shard(make_batch(seed=step), engine.settings.mesh, rank), settings_at(step))
    return {"loss": stats.loss, "norm": stats.grad_norm, "balance": stats.extra.get("balance_loss", 0.0)}


def nats(family: str, context: int) -> list[float]:
    """Losses by row of a model whose rows this many ranks share."""
    engine = TorchEngine(EngineSettings(tiny(family), seed=1, mesh=MeshShape(context=context), device="cpu"))
    engine.enter(StageSettings(SLOTS))
    found = engine.nats(make_batch(((13, 17, 10), (40,), (20, 11)), seq_len=SLOTS))
    return [float(each) for each in found.sum(1)]


if __name__ == "__main__":
    main()

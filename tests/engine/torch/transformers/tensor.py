"""Models of transformers whose matrices ranks share, and one process: gradients, steps, tokens, files.

Executed by itself: `python -m tests.engine.torch.transformers.tensor FOLDER`. Writes each layout's figures as JSON and
its gradients as NPZ.
"""

import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.engine.torch.tensor_parallel.shared import shard
from tests.engine.torch.transformers.families import FAMILIES, tiny
from tests.support.batches import settings_at
from tests.support.forked import launch
from trivium.engine.base import EngineSettings, KlSettings, OptimizerSettings, StageSettings
from trivium.engine.make import join_ranks
from trivium.engine.mesh import MeshShape
from trivium.engine.torch.engine import TorchEngine
from trivium.engine.torch.parallel import whole
from trivium.errors import ConfigError
from trivium.model.foreign import with_vocab
from trivium.model.spec import ModelSpec

SLOTS = 16
STAGE = StageSettings(SLOTS)
TIED = with_vocab(tiny("gemma3_text"), 130)
KINDS = {
    "muon": EngineSettings(tiny("olmo3"), OptimizerSettings("muon", grad_clip=1.0), seed=1, recompute="selective"),
    "tied": EngineSettings(TIED, OptimizerSettings(grad_clip=1.0), seed=1, micro_batch_size=1),
    "head bias": EngineSettings(tiny("phi"), seed=1, recompute="full"),
    "trained activation": EngineSettings(tiny("apertus"), OptimizerSettings("ademamix"), seed=1),
    "bfloat16": EngineSettings(tiny("qwen3"), seed=1, precision="bfloat16"),
}
LAYOUTS = {
    "one": MeshShape(),
    "tensor 2": MeshShape(tensor=2),
    "shard 2 x tensor 2": MeshShape(shard=2, tensor=2),
    "context 2 x tensor 2": MeshShape(context=2, tensor=2),
}
ON_FOUR = ("muon", "tied")


@dataclass(frozen=True, slots=True)
class Divided:
    """How far two ranks are from one process, or why they cannot share a family's matrices."""

    refused: str | None = None
    gradient_error: float = 0.0  # by the model's largest
    loss_error: float = 0.0  # by the loss


def main() -> None:
    """A launch for each number of ranks; the last one reads on one rank what two saved."""
    folder = Path(sys.argv[1])
    torch.set_num_threads(1)
    for size, act in ((1, measure), (2, measure), (4, measure), (1, end)):
        codes = launch(size, lambda act=act: act(folder))  # type: ignore[misc]
        assert codes == [0] * size, codes


def measure(folder: Path) -> None:
    """On one rank of a launch: every layout of its size; every family on one rank and two."""
    ranks = join_ranks()
    for name, mesh in LAYOUTS.items():
        if mesh.size != ranks.size:
            continue
        found = {kind: learn(kind, mesh, ranks.rank, folder) for kind in (KINDS if mesh.size < 4 else ON_FOUR)}
        if ranks.is_main:
            (folder / f"{name}.json").write_text(json.dumps(found))
    if ranks.size <= 2:
        write_families(folder)


def write_families(folder: Path) -> None:
    """On one rank of a launch of one or two: figures and gradients of every family."""
    ranks = join_ranks()
    families = {family: compared(tiny(family), MeshShape(tensor=ranks.size)) for family in FAMILIES}
    if ranks.is_main:
        figures = {family: figures for family, (figures, _) in families.items()}
        (folder / f"families {ranks.size}.json").write_text(json.dumps(figures))
        gradients = {f"{family} {name}": each for family in families for name, each in families[family][1].items()}
        np.savez(folder / f"families {ranks.size}.npz", **gradients)


def end(folder: Path) -> None:
    """On one rank: a step more from what two ranks saved."""
    found = {}
    for kind, settings in KINDS.items():
        engine = TorchEngine(replace(settings, device="cpu"))
        engine.load(folder / f"{kind} of 2")
        engine.enter(stages(folder, kind)[-1])
        found[kind] = step(engine, 9, 0)
    (folder / "end.json").write_text(json.dumps(found))


def stages(folder: Path, kind: str) -> list[StageSettings]:
    """A plain stage; KL with frozen parts; a vocabulary that grows."""
    frozen = replace(STAGE, kl=KlSettings(0.5, folder / f"{kind} before"), freeze=("embedding", "layers.0.attention"))
    return [STAGE, frozen, replace(STAGE, vocab=KINDS[kind].spec.vocab + 6)]


def learn(kind: str, mesh: MeshShape, rank: int, folder: Path) -> dict[str, Any]:
    """Steps in each stage; a save, or a step from what fewer ranks saved; an export; greedy tokens."""
    engine = TorchEngine(replace(KINDS[kind], mesh=mesh, device="cpu"))
    if mesh.size == 1:
        engine.save(folder / f"{kind} before").wait()
    found = []
    for number, stage in enumerate(stages(folder, kind)):
        engine.enter(replace(stage, context=mesh.context))
        found += [step(engine, 2 * number + each, rank) for each in range(2)]
    rows = engine.generation([np.array([1, 2, 3]), np.array([7, 5])], 3)
    greedy = []
    for _ in range(3):
        greedy.append(rows.logits().argmax(1))
        rows.append(greedy[-1])
    nats = engine.evaluate(shard(9, mesh, rank, SLOTS)).nats
    if mesh.size == 1:
        engine.save(folder / f"{kind} of 1").wait()
    if mesh.size == 2:
        engine = TorchEngine(replace(KINDS[kind], mesh=mesh, device="cpu", seed=5))
        engine.load(folder / f"{kind} of 1")
        engine.enter(stages(folder, kind)[-1])
        engine.save(folder / f"{kind} of 2").wait()
    engine.export(folder / f"{kind} exported by {mesh.size}")
    return {"steps": found, "greedy": np.array(greedy).tolist(), "nats": nats, "more": step(engine, 9, rank)}


def step(engine: TorchEngine, seed: int, rank: int) -> dict[str, float]:
    stats = engine.step(shard(seed, engine.settings.mesh, rank, SLOTS), settings_at(seed))
    return {"loss": stats.loss, "norm": stats.grad_norm, **stats.extra}


def compared(spec: ModelSpec, mesh: MeshShape) -> tuple[dict[str, Any], dict[str, Any]]:
    """A step's figures, and the gradients of the first weights; a refusal in their place where there is one."""
    try:
        engine = TorchEngine(EngineSettings(spec, seed=1, mesh=mesh, device="cpu"))
    except ConfigError as error:
        return {"refused": error.problems[0].what}, {}
    engine.enter(STAGE)
    engine._gradients(shard(0, mesh, 0, SLOTS), 1 / 40)
    known = {name: parameter.grad for name, parameter in engine.model.weights().items()}
    gradients = {name: whole(each).numpy().copy() for name, each in known.items() if each is not None}
    engine.optimizers.zero_grad()
    return step(engine, 1, 0), gradients


def found_of_families(folder: Path) -> dict[str, Divided]:
    """What launches of one rank and of two have written of every family."""
    one, two = (json.loads((folder / f"families {size}.json").read_text()) for size in (1, 2))
    found = {}
    with np.load(folder / "families 1.npz") as whole, np.load(folder / "families 2.npz") as shared:
        for family, figures in two.items():
            if "refused" in figures:
                found[family] = Divided(figures["refused"])
                continue
            names = [name for name in whole.files if name.startswith(f"{family} ")]
            assert names == [name for name in shared.files if name.startswith(f"{family} ")]
            largest = max(float(abs(whole[name]).max()) for name in names)
            apart = max(float(abs(shared[name] - whole[name]).max()) for name in names)
            loss_error = abs(figures["loss"] / one[family]["loss"] - 1)
            found[family] = Divided(None, apart / largest, loss_error)
    return found


if __name__ == "__main__":
    main()

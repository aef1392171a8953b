"""The same engine on every layout: what it starts from, what it learns, what it saves and loads.

Executed by itself: `python -m tests.engine.torch.layouts FOLDER`. Prints the figures of all layouts as JSON.
"""

import hashlib
import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.engine.tiny import STAGE
from tests.support.batches import TINY, VOCAB, make_batch, settings_at
from tests.support.counted import Counted
from tests.support.forked import launch
from trivium.engine.average import AverageSettings
from trivium.engine.base import EngineSettings, KlSettings, OptimizerSettings
from trivium.engine.loss_weight import LossWeights
from trivium.engine.make import join_ranks
from trivium.engine.mesh import MeshShape
from trivium.engine.ranks import Ranks
from trivium.engine.torch.engine import TorchEngine
from trivium.engine.torch.parallel import whole
from trivium.rows.batch import Batch

ADAMW, MUON, ADEMAMIX = (OptimizerSettings(name, grad_clip=1.0) for name in ("adamw", "muon", "ademamix"))
SPEC = replace(TINY, qk_norm=True)
TIED = replace(TINY, tied_embeddings=True)
TEACHER = replace(TINY, layers=3, width=48, head_dim=16, ffn=96, vocab=VOCAB + 200)
KINDS: Mapping[str, EngineSettings] = {
    "adamw": EngineSettings(SPEC, ADAMW, seed=1),
    "micro-batches": EngineSettings(SPEC, ADAMW, seed=1, micro_batch_size=1),
    "muon": EngineSettings(SPEC, MUON, seed=1),
    "ademamix": EngineSettings(SPEC, ADEMAMIX, seed=1),
    "recomputed": EngineSettings(SPEC, ADAMW, seed=1, recompute="full"),
    "tied": EngineSettings(TIED, ADAMW, seed=1),
    "bfloat16": EngineSettings(SPEC, ADAMW, seed=1, precision="bfloat16"),
}
LAYOUTS = {
    "one": MeshShape(),
    "shard 2": MeshShape(shard=2),
    "tensor 2": MeshShape(tensor=2),
    "shard 4": MeshShape(shard=4),
    "replicate 2 x shard 2": MeshShape(replicate=2, shard=2),
    "shard 2 x tensor 2": MeshShape(shard=2, tensor=2),
}
AVERAGES = {"ema": AverageSettings(ema=0.5), "last": AverageSettings(last=3, weights="1-sqrt")}
PROMPTS = [[1, 2, 3], [4], [5, 6, 7, 8, 9]]
STEPS = 8
HANDED_ON = 4  # the step after which another layout continues


def main() -> None:
    """All layouts of a size share one launch; each hands a checkpoint on to the layout that comes next."""
    folder = Path(sys.argv[1])
    torch.set_num_threads(1)
    for size in (1, 2, 4):
        codes = launch(size, lambda: measure(folder))
        assert codes == [0] * size, codes
    found = {name: json.loads((folder / f"{name}.json").read_text()) for name in LAYOUTS}
    print(json.dumps(found))  # noqa: T201


def measure(folder: Path) -> None:
    """On one rank of a launch: every layout of its size."""
    ranks = join_ranks()
    for name, mesh in LAYOUTS.items():
        if mesh.size != ranks.size:
            continue
        figures: dict[str, Any] = {kind: learn(kind, mesh, ranks.rank) for kind in KINDS}
        figures |= hand_on(folder, name, mesh, ranks.rank)
        figures["generated"] = generate(mesh, ranks)
        figures["changed"] = change_model(folder, name, mesh, ranks.rank)
        if name == "shard 2":
            figures["let go"] = {str(each): calls(make("adamw", mesh, each), ranks.rank) for each in (True, False)}
        if ranks.is_main:
            (folder / f"{name}.json").write_text(json.dumps(figures))


def make(kind: str, mesh: MeshShape, reshard: bool | None = None) -> TorchEngine:
    settings = replace(KINDS[kind], mesh=mesh, device="cpu", token_bytes=np.arange(VOCAB))
    engine = TorchEngine(replace(settings, reshard_after_forward=reshard))
    engine.enter(replace(STAGE, z_loss=1e-3, loss_weight=LossWeights({"code": 0.5})))
    return engine


def shard(batch: Batch, mesh: MeshShape, rank: int) -> Batch:
    size = batch.num_rows // (mesh.replicate * mesh.shard)
    return batch.rows(mesh.reader(rank, mesh.size) * size, (mesh.reader(rank, mesh.size) + 1) * size)


def take(engine: TorchEngine, rank: int, steps: Iterable[int]) -> list[dict[str, Any]]:
    """Take steps and give their figures."""
    taken = []
    for step in steps:
        stats = engine.step(shard(make_batch(seed=step), engine.settings.mesh, rank), settings_at(step))
        by_source = [dict(stats.nats_by_source), dict(stats.loss_tokens_by_source)]
        figures: dict[str, Any] = {"loss": stats.loss, "norm": stats.grad_norm, "z": stats.extra["z_loss"]}
        figures["objective"] = stats.extra["objective"]
        assert stats.loss_by_row is not None
        figures |= {"by_row": stats.loss_by_row.tolist()}
        taken.append(figures | {"by_source": by_source, "loss_tokens": stats.loss_tokens})
    return taken


def weights(engine: TorchEngine) -> str:
    """A hash of all whole weights."""
    hasher = hashlib.blake2b()
    for name, parameter in engine.model.named_parameters():
        hasher.update(name.encode() + whole(parameter.detach()).numpy().tobytes())
    return hasher.hexdigest()


def learn(kind: str, mesh: MeshShape, rank: int) -> dict[str, Any]:
    """From the seed on, with an evaluation in the middle that must change nothing."""
    engine = make(kind, mesh)
    held = sum(parameter.numel() for parameter in map(local, engine.model.parameters()))
    initial = weights(engine)
    taken = take(engine, rank, range(STEPS // 2))
    evaluated = engine.evaluate(shard(make_batch(seed=9), mesh, rank))
    taken += take(engine, rank, range(STEPS // 2, STEPS))
    by_source = {
        name: [part.nats, part.tokens, part.bytes, part.text_nats] for name, part in evaluated.by_source.items()
    }
    return {"initial": initial, "steps": taken, "evaluated": by_source, "held": held, "calls": calls(engine, rank)}


def calls(engine: TorchEngine, rank: int) -> dict[str, int]:
    """Collective calls that one more step makes."""
    now = replace(settings_at(STEPS), flags=lambda: (rank == engine.settings.mesh.size - 1, False))
    batch = shard(make_batch(seed=STEPS), engine.settings.mesh, rank)
    with Counted() as calls:
        stats = engine.step(batch, now)
    assert stats.raised == (True, False), "what one rank raises all ranks know"
    return dict(calls.calls)


def generate(mesh: MeshShape, ranks: Ranks) -> dict[str, Any]:
    """Three prompts that want 6, 2 and 4 more tokens, shared out to the ranks: some have none, some end early."""
    engine = make("adamw", mesh)
    own = range(mesh.reader(ranks.rank, mesh.size), 3, mesh.replicate * mesh.shard)
    wanted, rows = {0: 6, 1: 2, 2: 4}, {prompt: PROMPTS[prompt] for prompt in own}
    generation, places = engine.generation([np.array(row) for row in rows.values()], 6), list(rows)
    while ranks.agree(bool(places))[0]:
        chosen = generation.logits().argmax(axis=1)
        for prompt, token in zip(places, chosen.tolist(), strict=True):
            rows[prompt] = [*rows[prompt], token]
        left = [
            place for place, prompt in enumerate(places) if len(rows[prompt]) < len(PROMPTS[prompt]) + wanted[prompt]
        ]
        generation.select(np.array(left, np.int64))
        generation.append(chosen[left])
        places = [places[place] for place in left]
    losses = engine.nats(shard(make_batch(seed=9), mesh, ranks.rank))
    everywhere = {prompt: row for part in ranks.gather([[*each] for each in rows.items()]) for prompt, row in part}
    nats = np.concatenate(ranks.gather(losses.sum(1).tolist())[:: mesh.tensor])
    return {"tokens": [everywhere[prompt] for prompt in range(3)], "nats": nats.tolist()}


def local(parameter: Any) -> torch.Tensor:
    held: torch.Tensor = parameter.to_local() if hasattr(parameter, "to_local") else parameter
    return held


def hand_on(folder: Path, name: str, mesh: MeshShape, rank: int) -> dict[str, Any]:
    """Save, load what the layout before saved, continue; save in the background meanwhile; export and start."""
    names = list(LAYOUTS)
    before = names[names.index(name) - 1] if name != "one" else "one"
    figures: dict[str, Any] = {}
    for kind in ("adamw", "muon", "ademamix"):
        engine = make(kind, mesh)
        take(engine, rank, range(HANDED_ON))
        handle = engine.save(folder / kind / name)
        first = take(engine, rank, range(HANDED_ON, STEPS))  # continues while it is written
        files = handle.wait()
        at_end = weights(engine)
        engine.load(folder / kind / name)
        again = take(engine, rank, range(HANDED_ON, STEPS))
        figures[f"{kind} again"] = {"same": again == first and weights(engine) == at_end, "files": sorted(files)}
        engine = make(kind, mesh)
        engine.load(folder / kind / before)
        figures[f"{kind} of another layout"] = take(engine, rank, range(HANDED_ON, STEPS))
    figures["another optimizer again"] = change_optimizer(folder, name, mesh, rank)
    exported, started = make("adamw", mesh), make("muon", mesh)
    exported.load(folder / "adamw" / before)
    exported.export(folder / "exported" / name)
    join_ranks().meet()
    started.start_from(folder / "exported" / name)
    figures["exported"] = weights(started) == weights(exported)
    return figures | {kind: averages(folder, kind, name, before, mesh, rank) for kind in AVERAGES}


def averages(folder: Path, kind: str, name: str, before: str, mesh: MeshShape, rank: int) -> dict[str, Any]:
    """The average after some steps; whether it is the same after a resume; the one that the layout before saved."""
    stage = replace(STAGE, z_loss=1e-3, average=AVERAGES[kind])
    engine, resumed, handed = (make("adamw", mesh) for _ in range(3))
    engine.enter(stage)
    for step in range(HANDED_ON):
        take(engine, rank, [step])
        engine.add_to_average()
    own = weights(engine)
    engine.save(folder / kind / name).wait()
    with engine.averaged():
        average = weights(engine)
    resumed.load(folder / kind / name)
    resumed.enter(stage)
    for each in (engine, resumed):
        take(each, rank, [HANDED_ON])
        each.add_to_average()
    with engine.averaged():
        first = weights(engine)
    with resumed.averaged():
        again = weights(resumed)
    join_ranks().meet()
    handed.start_from(folder / kind / before, AVERAGES[kind])
    return {"average": average, "moved": average != own, "same": first == again, "before": weights(handed)}


def change_optimizer(folder: Path, name: str, mesh: MeshShape, rank: int) -> bool:
    """Whether a resume where another optimizer begins, and one after that, end with the same bits."""
    engine, stage = make("adamw", mesh), replace(STAGE, z_loss=1e-3, optimizer=ADEMAMIX)
    take(engine, rank, range(2))
    engine.save(folder / "boundary" / name).wait()
    engine.enter(stage)
    take(engine, rank, range(2, 4))
    engine.save(folder / "middle" / name).wait()
    take(engine, rank, range(4, 6))
    ends = [weights(engine)]
    for where, step, optimizer in (("boundary", 2, ADAMW), ("middle", 4, ADEMAMIX)):
        engine = make("muon", mesh)
        engine.load(folder / where / name, optimizer)
        engine.enter(stage)
        take(engine, rank, range(step, 6))
        ends.append(weights(engine))
    return ends[0] == ends[1] == ends[2]


def change_model(folder: Path, name: str, mesh: MeshShape, rank: int) -> dict[str, Any]:
    """Grow; then freeze, grow within the padding, and grow beyond it beside a teacher, a step each."""
    if name == "one":
        TorchEngine(EngineSettings(TEACHER, seed=3, device="cpu")).export(folder / "teacher")
    plain = replace(STAGE, z_loss=1e-3)
    distill = KlSettings(0.5, folder / "teacher", temperature=2.0, top_k=5, spec=TEACHER)
    stages = [
        replace(plain, freeze=("embedding", "layers.0", "layers.1.attention"), average=AverageSettings(ema=0.5)),
        replace(plain, vocab=VOCAB + 5, average=AverageSettings(ema=0.5)),
        replace(plain, vocab=TEACHER.vocab, freeze=("unembedding", "layers.0"), distill=distill),
    ]
    grown = make("adamw", mesh)
    grown.enter(stages[-1])
    figures: dict[str, Any] = {"grown": weights(grown), "steps": []}
    engine, resumed = make("adamw", mesh), make("adamw", mesh)
    for number, stage in enumerate(stages):
        engine.enter(stage)
        figures["steps"] += take(engine, rank, [number])
        if number == 1:
            engine.save(folder / "changed" / name).wait()
    resumed.load(folder / "changed" / name)
    resumed.enter(stages[-1])
    again = take(resumed, rank, [2])
    return figures | {"same": again == figures["steps"][2:] and weights(resumed) == weights(engine)}


if __name__ == "__main__":
    main()

"""The same engine where ranks share the slots of rows: what it learns, sends and generates.

Executed by itself: `python -m tests.engine.torch.context_parallel.shared_rows FOLDER`. Prints the figures of all
layouts as JSON; one process writes the reference's checkpoint first.
"""

import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.engine.torch.layouts import ADAMW, MUON, shard
from tests.support.batches import TINY, make_batch, settings_at
from tests.support.counted import Counted
from tests.support.forked import launch
from trivium.engine.base import EngineSettings, KlSettings, LossBatch, StageSettings
from trivium.engine.make import join_ranks
from trivium.engine.mesh import MeshShape
from trivium.engine.torch.engine import TorchEngine
from trivium.engine.torch.parallel import whole
from trivium.model.spec import RopeSpec
from trivium.rows.batch import Batch

SPEC = replace(TINY, heads=8, kv_heads=4, qk_norm=True)
SLIDING = replace(SPEC, window=6, sliding=(0,), rope=RopeSpec(sliding=RopeSpec(500.0)))
LONG, SHORT = 27, 16  # slots of rows; neither of two nor of four ranks can share 27 evenly
CROSSING = ((20, 7), (27,), (3, 20, 2), (10, 2, 1, 9))
APART = ((4, 8, 4), (4, 5, 3, 4), (4, 8), (3, 1, 7, 1, 2))  # between slots 4 and 12 no document of 16 goes on
PROMPTS = [[1, 2, 3], [4], [5, 6, 7, 8, 9]]
STEPS = 4
LAYOUTS = {
    "one": MeshShape(),
    "context 2": MeshShape(context=2),
    "context 4": MeshShape(context=4),
    "shard 2 x context 2 x tensor 2": MeshShape(shard=2, context=2, tensor=2),
}


def squared(hidden: torch.Tensor, lm_head: torch.Tensor, batch: LossBatch) -> torch.Tensor:
    """A loss of one's own, which asks for everything that it is given."""
    logits = (hidden @ lm_head.T).float()
    losses = torch.nn.functional.cross_entropy(logits, batch.targets.long(), reduction="none")
    weighted: torch.Tensor = losses * (1 + 0.1 * batch.positions + 0.01 * batch.documents)
    return weighted


KINDS: Mapping[str, EngineSettings] = {
    "gather": EngineSettings(SPEC, ADAMW, seed=1),
    "ulysses": EngineSettings(SPEC, ADAMW, seed=1, context_method="ulysses"),
    "muon": EngineSettings(SPEC, MUON, seed=1, micro_batch_size=1),
    "selective": EngineSettings(SPEC, ADAMW, seed=1, recompute="selective"),
    "full": EngineSettings(SPEC, ADAMW, seed=1, recompute="full", context_method="ulysses"),
    "own loss": EngineSettings(SPEC, ADAMW, seed=1, token_losses=squared),
    "windows": EngineSettings(SLIDING, ADAMW, seed=1, recompute="selective"),
    "windows by heads": EngineSettings(
        replace(SLIDING, attention_softcap=2.0), ADAMW, seed=1, context_method="ulysses"
    ),
}
ON_EIGHT = ("gather", "ulysses", "muon")  # a launch of eight takes its time


def main() -> None:
    folder = Path(sys.argv[1])
    torch.set_num_threads(1)
    for size in (1, 2, 4, 8):
        codes = launch(size, lambda: measure(folder))
        assert codes == [0] * size, codes
    found = {name: json.loads((folder / f"{name}.json").read_text()) for name in LAYOUTS}
    print(json.dumps(found))  # noqa: T201


def measure(folder: Path) -> None:
    """On one rank of a launch: the layout of its size."""
    ranks = join_ranks()
    (name,) = [name for name, mesh in LAYOUTS.items() if mesh.size == ranks.size]
    mesh = LAYOUTS[name]
    if name == "one":
        for kind in KINDS:
            make(kind, mesh).save(folder / f"reference of {kind}").wait()
    kinds = ON_EIGHT if mesh.size == 8 else KINDS
    figures: dict[str, Any] = {kind: learn(kind, mesh, folder) for kind in kinds}
    figures["generated"] = generate(make("gather", mesh))
    if name == "context 2":
        figures["sent"] = {kind: sent(make(kind, mesh)) for kind in ("gather", "ulysses", "selective")}
        figures["precision"] = change_precision(make("gather", mesh))
    if ranks.is_main:
        (folder / f"{name}.json").write_text(json.dumps(figures))


def make(kind: str, mesh: MeshShape) -> TorchEngine:
    return TorchEngine(replace(KINDS[kind], mesh=mesh, device="cpu"))


def own(engine: TorchEngine, batch: Batch) -> Batch:
    """The rows of this rank."""
    return shard(batch, engine.settings.mesh, join_ranks().rank)


def learn(kind: str, mesh: MeshShape, folder: Path) -> dict[str, Any]:
    """Rows of two lengths, of documents that are kept apart and that are joined, with and without a reference."""
    engine = make(kind, mesh)
    has_own = engine.settings.token_losses is not None
    kl = KlSettings(0.5, folder / f"reference of {kind}")
    long = StageSettings(LONG, z_loss=None if has_own else 1e-3)
    short = StageSettings(SHORT, document_mask=False, kl=kl)
    figures: dict[str, Any] = {"gradients": {}, "steps": [], "evaluated": []}
    for stage, rows in ((long, CROSSING), (short, APART)):
        engine.enter(stage)
        batch = own(engine, make_batch(rows, seed=7, seq_len=stage.seq_len))
        figures["gradients"][stage.seq_len] = gradients(engine, batch)
        for step in range(STEPS):
            batch = own(engine, make_batch(rows, seed=step, seq_len=stage.seq_len))
            stats = engine.step(batch, settings_at(step))
            assert stats.loss_by_row is not None
            rows_of_step = stats.loss_by_row.tolist()
            numbers = {"loss": stats.loss, "norm": stats.grad_norm, "rows": rows_of_step, **stats.extra}
            figures["steps"].append(numbers | {"tokens": dict(stats.loss_tokens_by_source)})
        found = engine.evaluate(batch)
        sources = {name: [part.nats, part.tokens] for name, part in found.by_source.items()}
        figures["evaluated"].append({"sources": sources, "by_position": found.by_position.tolist()})
        figures["nats"] = join_ranks().gather(engine.nats(batch).tolist())
    return figures


def gradients(engine: TorchEngine, batch: Batch) -> list[float]:
    """Of one pass, all parameters end to end; nothing is left of them."""
    engine._gradients(batch, 0.01)
    parameters = [parameter for _, parameter in sorted(engine.model.weights().items())]
    found = [whole(parameter.grad).flatten() for parameter in parameters if parameter.grad is not None]
    engine.optimizers.zero_grad()
    values: list[float] = torch.cat(found).tolist()
    return values


def sent(engine: TorchEngine) -> dict[str, Any]:
    """Calls and bytes of a step in which documents cross from rank to rank, and of one in which none does."""
    engine.enter(StageSettings(SHORT))
    found = {}
    for name, rows in (("crossing", ((16,), (5, 11), (16,), (2, 14))), ("apart", APART)):
        with Counted() as counted:
            engine.step(own(engine, make_batch(rows, seq_len=SHORT)), settings_at())
        found[name] = {"calls": dict(counted.calls), "bytes": dict(counted.bytes)}
    return found


def change_precision(engine: TorchEngine) -> dict[str, Any]:
    """A stage in bfloat16 between two in float32."""
    batch = own(engine, make_batch(seed=3))
    engine.step(batch, settings_at())

    def held() -> list[bytes]:
        state = {**engine._weights(), **dict(engine.optimizers.state())}
        return [whole(tensor).numpy().tobytes() for _, tensor in sorted(state.items())]

    before = held()
    engine.enter(StageSettings(SHORT, precision="bfloat16"))
    kept, flows = held() == before, str(engine.model.precision)
    losses = [engine.step(batch, settings_at(1)).loss]
    engine.enter(StageSettings(SHORT))
    losses.append(engine.step(batch, settings_at(2)).loss)
    return {"kept": kept, "flows": [flows, str(engine.model.precision)], "losses": losses}


def generate(engine: TorchEngine) -> list[list[int]]:
    """Ranks that share rows write the same."""
    rows = [list(prompt) for prompt in PROMPTS]
    engine.enter(StageSettings(SHORT))
    generation = engine.generation([np.array(row) for row in rows], 4)
    for _ in range(4):
        chosen = generation.logits().argmax(axis=1)
        rows = [[*row, token] for row, token in zip(rows, chosen.tolist(), strict=True)]
        generation.append(chosen)
    assert all(each == rows for each in join_ranks().gather(rows))
    return rows


if __name__ == "__main__":
    main()

"""One process, and ranks that share every matrix, take the same steps: KL, masked and joined rows, odd lengths.

Executed by itself: `python -m tests.engine.torch.tensor_parallel.shared FOLDER`. Writes each layout's figures as JSON
and its gradients as NPZ.
"""

import json
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.nn.functional import cross_entropy
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.support.batches import TINY, VOCAB, make_batch, settings_at
from tests.support.counted import Counted
from tests.support.forked import launch
from trivium.engine.base import EngineSettings, KlSettings, LossBatch, OptimizerSettings, StageSettings
from trivium.engine.make import join_ranks
from trivium.engine.mesh import MeshShape
from trivium.engine.torch import loss
from trivium.engine.torch.engine import TorchEngine
from trivium.engine.torch.parallel import whole
from trivium.rows.batch import Batch

LAYOUTS = {
    "one": MeshShape(),
    "tensor 2": MeshShape(tensor=2),
    "tensor 4": MeshShape(tensor=4),
    "shard 2 x tensor 2": MeshShape(shard=2, tensor=2),
}
SPEC = replace(TINY, kv_heads=4, qk_norm=True)
WIDE = replace(SPEC, vocab=1024)  # nothing else has a dimension of this size, or of a half of it
ADAMW, MUON = OptimizerSettings("adamw", grad_clip=1.0), OptimizerSettings("muon", grad_clip=1.0)


def nats(hidden: Tensor, lm_head: Tensor, batch: LossBatch) -> Tensor:
    """Cross-entropy as a loss of the user's own, which the reference's pulls."""
    plain = cross_entropy(hidden @ lm_head.T, batch.targets, reduction="none")
    assert lm_head.shape[0] == VOCAB, "all of the vocabulary"
    if batch.reference is None:
        return plain
    theirs = (batch.reference.hidden @ batch.reference.lm_head.T).softmax(1)
    pull: Tensor = batch.reference.beta * cross_entropy(hidden @ lm_head.T, theirs, reduction="none")
    return plain + pull


FORM = replace(
    SPEC,
    qk_norm_joint=True,
    norm="both",
    qkv_bias=True,
    activation="xielu",
    gated=False,
    window=4,
    sliding=(1,),
    embedding_scale=2.0,
    logit_scale=0.7,
    logit_softcap=6.0,
)
KINDS = {
    "adamw": EngineSettings(SPEC, ADAMW, seed=1),
    "muon": EngineSettings(SPEC, MUON, seed=1, recompute="selective"),
    "tied": EngineSettings(replace(SPEC, tied_embeddings=True), ADAMW, seed=1, micro_batch_size=1),
    "other layers": EngineSettings(FORM, ADAMW, seed=1, recompute="selective"),
    "own loss": EngineSettings(SPEC, ADAMW, seed=1, token_losses=nats, recompute="full"),
}
SLOTS = 15  # no layout's ranks share them evenly
SLICE = 5  # tokens
ROWS = ((5, 6, 4), (15,), (3, 6), (10, 2, 1))


def main() -> None:
    folder = Path(sys.argv[1])
    torch.set_num_threads(1)
    loss.slice_tokens = lambda device, vocab: SLICE
    for size in (1, 2, 4):
        codes = launch(size, lambda: measure(folder))
        assert codes == [0] * size, codes


def measure(folder: Path) -> None:
    """On one rank of a launch: every layout of its size."""
    ranks = join_ranks()
    for name, mesh in LAYOUTS.items():
        if mesh.size == ranks.size:
            learnt = {kind: learn(folder, kind, mesh, ranks.rank) for kind in KINDS}
            figures = {kind: found for kind, (found, _) in learnt.items()} | {"calls": calls(mesh, ranks.rank)}
            if ranks.is_main:
                (folder / f"{name}.json").write_text(json.dumps(figures))
                gradients = {f"{kind} {key}": each for kind in KINDS for key, each in learnt[kind][1].items()}
                np.savez(folder / f"{name}.npz", **gradients)


def stages(reference: Path, *, own: bool) -> list[StageSettings]:
    """Masked rows without KL; then KL in every direction, where documents are joined in the second."""
    plain = StageSettings(SLOTS, z_loss=None if own else 1e-3)
    directions = ("forward",) if own else ("forward", "reverse", "nll_gap")
    penalties = [KlSettings(0.5, reference, direction) for direction in directions]  # type: ignore[arg-type]
    return [plain, *(replace(plain, kl=kl, document_mask=kl.direction != "reverse") for kl in penalties)]


def learn(folder: Path, kind: str, mesh: MeshShape, rank: int) -> tuple[Any, dict[str, Any]]:
    """Figures of two steps in every stage, and the gradients that the first weights have in each."""
    settings = replace(KINDS[kind], mesh=mesh, device="cpu")
    reference = folder / f"reference of {kind}"
    if mesh.size == 1:
        TorchEngine(replace(settings, seed=2)).save(reference).wait()
    engine, fresh = TorchEngine(settings), TorchEngine(settings)
    figures, gradients = [], {}
    for number, stage in enumerate(stages(reference, own=settings.token_losses is not None)):
        engine.enter(stage)
        fresh.enter(stage)
        fresh._gradients(shard(number, mesh, rank), 1 / 40)
        for name, parameter in fresh.model.named_parameters():
            assert parameter.grad is not None
            gradients[f"{number} {name}"] = whole(parameter.grad).numpy().copy()
        fresh.optimizers.zero_grad()
        for step in (2 * number, 2 * number + 1):
            stats = engine.step(shard(step, mesh, rank), settings_at(step))
            figures.append({"loss": stats.loss, "norm": stats.grad_norm, **stats.extra})
        figures.append({"evaluated": engine.evaluate(shard(9, mesh, rank)).nats})
    return figures, gradients


def shard(seed: int, mesh: MeshShape, rank: int, seq_len: int = SLOTS) -> Batch:
    """The rows of a rank; ranks that share matrices have the same."""
    batch = make_batch(ROWS, seed, seq_len)
    size = batch.num_rows // (mesh.replicate * mesh.shard)
    reader = mesh.reader(rank, mesh.size)
    return batch.rows(reader * size, (reader + 1) * size)


def calls(mesh: MeshShape, rank: int) -> dict[str, Any]:
    """What a forward and a backward pass send, and the shapes of all that has columns of the vocabulary."""
    engine = TorchEngine(replace(KINDS["adamw"], spec=WIDE, mesh=mesh, device="cpu"))
    engine.enter(StageSettings(16))
    batch = shard(0, mesh, rank, 16)
    with Shapes() as shapes, Counted() as counted:
        engine._gradients(batch, 1.0)
    tokens = int((batch.targets >= 0).sum())
    return {"calls": dict(counted.calls), "bytes": dict(counted.bytes), "shapes": shapes.matrices(), "tokens": tokens}


class Shapes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The shapes of all matrices that operations make."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: Counter[tuple[int, ...]] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented
        result = func(*args, **(kwargs or {}))
        self.seen.update(tuple(each.shape) for each in tree_leaves(result) if isinstance(each, Tensor))
        return result

    def matrices(self) -> list[tuple[int, ...]]:
        return sorted(shape for shape in self.seen if len(shape) == 2)


if __name__ == "__main__":
    main()

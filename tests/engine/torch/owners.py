"""Muon's steps on every layout of two and four ranks beside those of one process.

Executed by itself: `python -m tests.engine.torch.owners`. Prints JSON: for every layout, rank and list of matrices, the
matrices that differ in any bit, the gradients' norm before and after clipping (in one process, on all ranks), and the
bytes that the rank received in a step.
"""

import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.tensor import DTensor
from torch.nn.utils import get_total_norm

from tests.support.counted import Counted
from tests.support.forked import launch
from tests.support.sharded import filled, sharded_matrices
from trivium.engine.make import join_ranks
from trivium.engine.mesh import MeshShape
from trivium.engine.torch.optimizers.muon import WideMuon
from trivium.engine.torch.parallel import scale_and_clip, square_of, whole

LAYOUTS = {
    "shard 2": MeshShape(shard=2),
    "tensor 2": MeshShape(tensor=2),
    "replicate 2": MeshShape(replicate=2),
    "shard 4": MeshShape(shard=4),
    "shard 2 x tensor 2": MeshShape(shard=2, tensor=2),
    "replicate 2 x shard 2": MeshShape(replicate=2, shard=2),
    "replicate 2 x tensor 2": MeshShape(replicate=2, tensor=2),
}
TALL, WIDE = [(10, 6), (24, 16), (2, 2), (34, 8)], [(6, 10), (16, 24), (2, 6), (8, 34)]
# (2, 2) and (2, 6) leave ranks without rows, 10 and 34 rows are not alike on all ranks.
SIZES = {"many": [*TALL, *WIDE, *WIDE, *TALL], "one": [(10, 6)], "three": [(6, 10), (10, 6), (8, 8)]}
WITHOUT_GRADIENT = 5  # of "many"
STEPS, LIMIT = 3, 1.0


def norm_of(gradients: list[Tensor]) -> Tensor:
    """Over all ranks."""
    if not isinstance(gradients[0], DTensor):
        return get_total_norm(gradients)
    squared = square_of(gradients)
    dist.all_reduce(squared)
    return squared.sqrt()


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for size in (2, 4):
            codes = launch(size, lambda: measure(Path(folder)))
            assert codes == [0] * size, codes
        found = {name: json.loads((Path(folder) / name).read_text()) for name in LAYOUTS}
    print(json.dumps(found))  # noqa: T201


def measure(folder: Path) -> None:
    torch.set_num_threads(1)
    ranks = join_ranks()
    for name, shape in LAYOUTS.items():
        if shape.size != ranks.size:
            continue
        found = ranks.gather({kind: beside_one_process(shape, sizes) for kind, sizes in SIZES.items()})
        if ranks.is_main:
            (folder / name).write_text(json.dumps(found))


def values(sizes: list[tuple[int, int]], seed: int) -> list[Tensor]:
    random = torch.Generator().manual_seed(seed)
    return [torch.randn(size, generator=random) for size in sizes]


def beside_one_process(shape: MeshShape, sizes: list[tuple[int, int]]) -> dict[str, Any]:
    """On one rank: what all ranks made, and whether one process makes the same."""
    one = [nn.Parameter(value) for value in values(sizes, 0)]
    many = [
        nn.Parameter(filled(matrix, value))
        for matrix, value in zip(sharded_matrices(shape, sizes), values(sizes, 0), strict=True)
    ]
    optimizers = [WideMuon(matrices, lr=0.1, momentum=0.9, weight_decay=0.1) for matrices in (one, many)]
    received = 0
    for step in range(STEPS):
        for index, value in enumerate(values(sizes, 1 + step)):
            if index != WITHOUT_GRADIENT:
                one[index].grad, many[index].grad = value, filled(many[index], value)
        optimizers[0].step()
        with Counted() as counted:
            optimizers[1].step()
        received += counted.bytes.total()
    differ = [
        index for index, (a, b) in enumerate(zip(one, many, strict=True)) if not torch.equal(a, whole(b.detach()))
    ]
    norms = [_clipped(matrices) for matrices in (one, many)]
    return {"differ": differ, "norms": norms, "received": received // STEPS}


def _clipped(matrices: list[nn.Parameter]) -> list[float]:
    """The gradients' norm before clipping and after."""
    gradients = [matrix.grad for matrix in matrices if matrix.grad is not None]
    before = norm_of(gradients)
    scale_and_clip(1.0, before, LIMIT, matrices)
    return [before.item(), get_total_norm([whole(gradient) for gradient in gradients]).item()]


if __name__ == "__main__":
    main()

"""Who writes what: every element once, in equal shares, and the same plan on every rank without a message."""

import math
from collections import Counter

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from tests.support.sharded import filled, playing_rank, sharded_matrices
from trivium.engine.mesh import MeshShape
from trivium.engine.torch.checkpoint.parts import SavedTensor, part_of, planned
from trivium.engine.torch.parallel import REPLICATE, SHARD, TENSOR, local_part

SIZES = [(16, 8), (8, 16), (5, 7), (16, 24), (3, 1)]
SHAPES = [
    MeshShape(shard=8),
    MeshShape(replicate=2, shard=4),
    MeshShape(shard=2, tensor=4),
    MeshShape(replicate=2, shard=2, tensor=2),
    MeshShape(replicate=8),
]


def mesh_of(shape: MeshShape) -> DeviceMesh:
    sizes = (shape.replicate, shape.shard, shape.tensor)
    return init_device_mesh("cpu", sizes, mesh_dim_names=(REPLICATE, SHARD, TENSOR))


def plan_of(rank: int, shape: MeshShape) -> tuple[dict[str, SavedTensor], dict[str, Tensor | None]]:
    """As one rank has it: all ranks' parts, and the values that it writes itself."""
    with playing_rank(rank, shape.size):
        matrices = sharded_matrices(shape, SIZES, whole=2)
        numbered = {
            str(number): filled(matrix, torch.arange(matrix.numel(), dtype=torch.float32).reshape(matrix.shape))
            for number, matrix in enumerate(matrices)
        }
        plan = planned(numbered | {"step": torch.tensor(3.0)}, mesh_of(shape))
        own = {name: part_of(tensor, plan[name].parts, rank) for name, tensor in numbered.items()}
    return plan, own


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_element_is_written_once_by_a_rank_that_holds_it(shape: MeshShape) -> None:
    plans = [plan_of(rank, shape) for rank in range(shape.size)]
    for name, (rows, columns) in zip(map(str, range(len(SIZES))), SIZES, strict=True):
        parts = plans[0][0][name].parts
        for other, _ in plans:  # every rank comes to the same plan
            assert all(
                np.array_equal(one, two)
                for one, two in zip(
                    (parts.starts, parts.sizes, parts.ranks),
                    (other[name].parts.starts, other[name].parts.sizes, other[name].parts.ranks),
                    strict=True,
                )
            )
        written: Counter[float] = Counter()
        for rank, (_, own) in enumerate(plans):
            part = own[name]
            assert (part is not None) == (rank in parts.ranks)
            written.update([] if part is None else part.flatten().tolist())
        assert written == dict.fromkeys(map(float, range(rows * columns)), 1)
    step = plans[0][0]["step"].parts
    assert (step.starts.shape, step.ranks.tolist()) == ((1, 0), [0])


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_ranks_that_hold_the_same_share_the_writing(shape: MeshShape) -> None:
    with playing_rank(0, shape.size):
        (matrix,) = sharded_matrices(shape, [(64, 64)])
        parts = planned({"matrix": matrix}, mesh_of(shape))["matrix"].parts
    assert sorted(parts.ranks.tolist()) == list(range(shape.size))
    assert set(parts.sizes.prod(axis=1).tolist()) == {64 * 64 // shape.size}


def test_tensors_of_one_shape_and_layout_share_a_table() -> None:
    shape = MeshShape(replicate=2, shard=2, tensor=2)
    with playing_rank(1, shape.size):
        matrices = sharded_matrices(shape, [(16, 8), (8, 16)] * 10)
        plan = planned({str(number): matrix for number, matrix in enumerate(matrices)}, mesh_of(shape))
        held = sum(math.prod(each.stop - each.start for each in local_part(matrix)[1]) for matrix in matrices)
    assert len({id(tensor.parts) for tensor in plan.values()}) == 2
    assert held == 20 * 128 // 4  # each is on both copies of the model

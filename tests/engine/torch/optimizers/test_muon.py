"""Muon's updates in one process and on ranks that share the matrices; what ranks send and hold."""

from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.optim import Muon
from torch.optim._muon import _zeropower_via_newtonschulz

from tests.engine.torch.owners import LAYOUTS, LIMIT, SIZES, WITHOUT_GRADIENT
from tests.support.counted import Counted
from tests.support.measured import measured
from tests.support.sharded import filled, playing_rank, sharded_matrices
from trivium.engine.mesh import MeshShape
from trivium.engine.torch.optimizers.muon import WideMuon, exchanged_as, orthogonal

FLOAT, SIDE = 4, 128


@pytest.fixture(scope="module")
def layouts() -> dict[str, Any]:
    """What every rank of every layout found."""
    return measured("tests.engine.torch.owners")


def test_wide_muon_is_torchs_muon_but_for_rounding() -> None:
    updates = []
    for kind in (Muon, WideMuon):
        random = torch.Generator().manual_seed(0)
        matrices = [nn.Parameter(torch.zeros(shape)) for shape in ((24, 8), (8, 24), (16, 16))]
        optimizer = kind(matrices, lr=1.0, momentum=0.9, weight_decay=0.1)
        for _ in range(3):
            for matrix in matrices:
                matrix.grad = torch.randn(matrix.shape, generator=random)
            optimizer.step()  # type: ignore[no-untyped-call]
        updates.append([matrix.detach() for matrix in matrices])
    for ours, theirs in zip(updates[1], updates[0], strict=True):
        assert (ours - theirs).norm() / theirs.norm() < 0.02


@pytest.mark.parametrize("shape", [(24, 8), (8, 24)])
def test_on_gpus_a_matrix_is_made_orthogonal_as_torch_does_to_the_bit(shape: tuple[int, int]) -> None:
    assert exchanged_as(torch.device("cuda")) == torch.bfloat16
    assert exchanged_as(torch.device("cpu")) == torch.float32
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    (group,) = WideMuon([nn.Parameter(matrix)]).param_groups
    theirs = _zeropower_via_newtonschulz(matrix, group["ns_coefficients"], group["ns_steps"], group["eps"])
    assert torch.equal(orthogonal(matrix.bfloat16(), group), theirs)


@pytest.mark.slow
@pytest.mark.parametrize("name", LAYOUTS)
def test_ranks_make_the_updates_of_one_process_to_the_bit(layouts: dict[str, Any], name: str) -> None:
    assert len(layouts[name]) == LAYOUTS[name].size
    assert [found[kind]["differ"] for found in layouts[name] for kind in SIZES] == [[]] * len(SIZES) * len(
        layouts[name]
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", LAYOUTS)
def test_ranks_send_every_part_once_to_its_owner_and_once_back(layouts: dict[str, Any], name: str) -> None:
    for kind, sizes in SIZES.items():
        numbers = sum(rows * columns for index, (rows, columns) in enumerate(sizes) if index != WITHOUT_GRADIENT)
        received = sum(found[kind]["received"] for found in layouts[name])
        # Each copy makes its share of the matrices; a broadcast is counted on its sender, too.
        broadcast = numbers * LAYOUTS[name].replicate if LAYOUTS[name].replicate > 1 else 0
        assert received == (2 * numbers + broadcast) * FLOAT


@pytest.mark.slow
@pytest.mark.parametrize("name", LAYOUTS)
def test_ranks_know_the_norm_and_clip_as_one_process_does(layouts: dict[str, Any], name: str) -> None:
    for kind in SIZES:
        for found in layouts[name]:
            one, many = found[kind]["norms"]
            assert many == pytest.approx(one, rel=1e-6)
            assert many == layouts[name][0][kind]["norms"][1]
            assert one[0] > LIMIT == pytest.approx(one[1])


def counted_step(shape: MeshShape, rank: int, count: int) -> Counted:
    """A step with square matrices on one rank of a launch."""
    with playing_rank(rank, shape.size):
        parameters = sharded_matrices(shape, [(SIDE, SIDE)] * count)
        values = torch.ones(SIDE, SIDE)
        matrices = [nn.Parameter(filled(parameter, values)) for parameter in parameters]
        for matrix in matrices:
            matrix.grad = filled(matrix, values)
        optimizer = WideMuon(matrices)
        optimizer.step()  # makes the state
        with Counted() as counted:
            optimizer.step()
    return counted


@pytest.mark.parametrize(
    "shape",
    [
        MeshShape(shard=4),
        MeshShape(shard=64),
        MeshShape(replicate=4, shard=4),
        MeshShape(2, 8, tensor=4),
        MeshShape(8, 16, tensor=8),
    ],
    ids=str,
)
def test_a_step_holds_a_few_matrices_on_any_number_of_ranks(shape: MeshShape) -> None:
    count, matrix = 64, SIDE * SIDE * FLOAT
    part = count * matrix // (shape.shard * shape.tensor)
    for rank in (0, shape.size - shape.shard * shape.tensor):  # owners of the first copy and of the last
        counted = counted_step(shape, rank, count)
        assert counted.peak <= 9 * matrix
        assert counted.bytes["broadcast_"] == (part if shape.replicate > 1 else 0)
        # An owner receives whole matrices, the others their parts alone.
        assert counted.bytes["alltoall_base_"] <= part // shape.replicate + max(part // shape.replicate, matrix)


def test_a_step_is_taken_without_memory() -> None:
    shape = MeshShape(replicate=2, shard=2, tensor=2)
    with playing_rank(5, shape.size):
        parameters = sharded_matrices(shape, [(SIDE, SIDE)] * 3)
        with FakeTensorMode():
            values = torch.empty(SIDE, SIDE)
            matrices = [nn.Parameter(filled(parameter, values)) for parameter in parameters]
            matrices[1].grad, matrices[2].grad = (filled(matrix, values) for matrix in matrices[1:])
            optimizer = WideMuon(matrices)
            optimizer.step()
    assert set(optimizer.state) == set(matrices[1:])

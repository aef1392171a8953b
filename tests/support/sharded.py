"""Matrices shared out by torch's own FSDP and tensor parallelism, and one process that plays any rank of any launch."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.debug import _clear_sharding_prop_cache
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.testing._internal.distributed.fake_pg import FakeStore

from trivium.engine.mesh import MeshShape
from trivium.engine.torch.parallel import REPLICATE, SHARD, TENSOR, own_place, part_at


@contextmanager
def playing_rank(rank: int, size: int) -> Iterator[None]:
    """Collectives return at once and receive nothing. torch remembers layouts with the rank that first had them."""
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=size)
    _clear_sharding_prop_cache()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        dist.destroy_process_group()


def sharded_matrices(shape: MeshShape, sizes: Sequence[tuple[int, int]], *, whole: int = 0) -> list[DTensor]:
    """Parameters without storage; the tensor axis splits rows and columns by turns, but not the last `whole` ones."""
    axes = {REPLICATE: shape.replicate, SHARD: shape.shard, TENSOR: shape.tensor}
    mesh = init_device_mesh("cpu", tuple(axes.values()), mesh_dim_names=tuple(axes))
    with torch.device("meta"):
        model = nn.Sequential(*(nn.Linear(inputs, outputs, bias=False) for outputs, inputs in sizes))
    for index, layer in enumerate(list(model)[: len(sizes) - whole] if shape.tensor > 1 else ()):
        parallelize_module(layer, mesh[TENSOR], RowwiseParallel() if index % 2 else ColwiseParallel())
    fully_shard(model, mesh=mesh[REPLICATE, SHARD] if shape.replicate > 1 else mesh[SHARD])
    parameters = list(model.parameters())
    assert all(isinstance(parameter, DTensor) for parameter in parameters)
    return parameters  # type: ignore[return-value]


def filled(parameter: Tensor, values: Tensor) -> DTensor:
    """A tensor laid out as a parameter is, with a rank's part of these values."""
    assert isinstance(parameter, DTensor)
    where, layout = part_at(parameter, own_place(parameter.device_mesh)), (parameter.device_mesh, parameter.placements)
    return DTensor.from_local(
        values[where].clone(), *layout, run_check=False, shape=parameter.shape, stride=parameter.stride()
    )

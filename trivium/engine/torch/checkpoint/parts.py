"""Which rank writes which part of a tensor: arithmetic on the mesh, so that no rank asks another.

The ranks that hold the same part share it out by its rows: each byte is written once, and no rank writes more than
its share. Tensors of one shape and layout have one table, whatever their number: a model has some ten.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement

from trivium.engine.torch.parallel import local_part, places, split_at


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """Where the parts of a tensor begin, their sizes, (parts, dimensions) each, and the ranks whose files have them."""

    starts: NDArray[np.int64]
    sizes: NDArray[np.int64]
    ranks: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class SavedTensor:
    """A tensor's type and shape, and where its parts are."""

    dtype: torch.dtype
    shape: torch.Size
    parts: Parts


def planned(state: Mapping[str, Tensor], mesh: DeviceMesh | None) -> dict[str, SavedTensor]:
    """Every tensor's parts on all ranks; the same on each. What is not shared out is rank 0's to write."""
    return {name: SavedTensor(tensor.dtype, tensor.shape, _parts(tensor, mesh)) for name, tensor in state.items()}


def part_of(tensor: Tensor, parts: Parts, rank: int) -> Tensor | None:
    """What a rank writes of what it holds of a tensor; None where others write all of it."""
    (own,) = np.nonzero(parts.ranks == rank)
    if not len(own):
        return None
    held, where = local_part(tensor.detach())
    first, stop = parts.starts[own[0]], parts.starts[own[0]] + parts.sizes[own[0]]
    inside = zip(where, first.tolist(), stop.tolist(), strict=True)
    return held[tuple(slice(begin - each.start, end - each.start) for each, begin, end in inside)]


def whole_part(shape: tuple[int, ...], rank: int) -> Parts:
    """A tensor that one rank writes whole."""
    return Parts(np.zeros((1, len(shape)), np.int64), np.array([shape], np.int64), np.array([rank]))


def _parts(tensor: Tensor, mesh: DeviceMesh | None) -> Parts:
    if not isinstance(tensor, DTensor) or mesh is None:
        return _whole_of_first(tuple(tensor.shape))
    return _shared_out(tensor.shape, tensor.device_mesh, tuple(tensor.placements), mesh)


@cache
def _whole_of_first(shape: tuple[int, ...]) -> Parts:
    return whole_part(shape, 0)


@cache
def _shared_out(shape: torch.Size, own_mesh: DeviceMesh, placements: tuple[Placement, ...], mesh: DeviceMesh) -> Parts:
    """All ranks' parts of a tensor with these placements on its own mesh, which may leave out axes of the whole one."""
    holders: dict[tuple[tuple[int, int], ...], list[int]] = {}
    for rank, place in enumerate(places(mesh)):
        where = split_at(shape, own_mesh, placements, place)
        holders.setdefault(tuple((each.start, each.stop) for each in where), []).append(rank)
    found: list[tuple[tuple[int, ...], tuple[int, ...], int]] = []
    for bounds, ranks in holders.items():
        if not bounds:  # a number has no rows to share
            found.append(((), (), ranks[0]))
            continue
        (first, stop), *rest = bounds
        rows = -(-(stop - first) // len(ranks))
        for number, rank in enumerate(ranks):
            begin, end = (min(first + rows * each, stop) for each in (number, number + 1))
            size = (end - begin, *(stop - start for start, stop in rest))
            if min(size):
                found.append(((begin, *(start for start, _ in rest)), size, rank))
    found.sort()
    tables = ([part[column] for part in found] for column in (0, 1))
    starts, sizes = (np.array(table, np.int64).reshape(len(found), len(shape)) for table in tables)
    return Parts(starts, sizes, np.array([rank for _, _, rank in found], np.int64))

"""Gradients of matrices -> orthogonal updates, on CPUs and on many ranks.

torch's own Muon is written for one GPU, in bfloat16. On a CPU bfloat16 products are emulated: a step of a 9M-parameter
model takes torch's Muon 13 s and `WideMuon`, in float32, 0.4 s. State, settings and update are torch's, so that either
continues what the other began; they differ by the rounding of bfloat16.

Ranks that share the matrices take them in buckets, in which every rank owns one:

    updates      each rank sends its parts of the matrices to their owners: an all-to-all
    directions   an owner puts its matrix together, makes it orthogonal and sends the parts back: a second all-to-all
    replicate    a copy of the model does this with its share of the bucket, and broadcasts its parts to the others

A rank computes where the parts of the others lie, so that only numbers are sent. In a step a rank sends and receives
its part of the matrices twice, in bfloat16 on GPUs, and holds the memory of a few matrices, on any number of ranks.
On CPUs the updates are those of one process to the bit.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist
from torch.distributed.tensor import DTensor
from torch.optim import Muon

from trivium.engine.torch.parallel import REPLICATE, axis_names, local_part, part_at, places


class WideMuon(Muon):
    """torch.optim.Muon for CPUs and for many ranks."""

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        assert closure is None, "gradients are made before the step"
        for group in self.param_groups:
            matrices = [matrix for matrix in group["params"] if matrix.grad is not None]
            for matrix in matrices:
                self._average(matrix).lerp_(_gradient(matrix), 1 - group["momentum"])
            for matrix, direction in self._directions(matrices, group):
                outputs, inputs = matrix.shape
                held, _ = local_part(matrix)
                held.mul_(1 - group["lr"] * group["weight_decay"])
                held.add_(direction, alpha=-group["lr"] * math.sqrt(max(1, outputs / inputs)))

    def _average(self, matrix: Tensor) -> Tensor:
        """What this rank holds of the running average of a matrix's gradients."""
        state = self.state[matrix]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(matrix)
        return local_part(state["momentum_buffer"])[0]

    def _directions(self, matrices: list[Tensor], group: dict[str, Any]) -> Iterator[tuple[Tensor, Tensor]]:
        """Every matrix with what this rank holds of its orthogonal update."""

        def update(matrix: Tensor) -> Tensor:
            return _gradient(matrix).lerp(self._average(matrix), group["momentum"])

        shared = [matrix for matrix in matrices if isinstance(matrix, DTensor)]
        if shared:
            return _Owners(shared, update, partial(orthogonal, group=group)).directions()
        return ((matrix, orthogonal(update(matrix), group)) for matrix in matrices)


def _gradient(matrix: Tensor) -> Tensor:
    """What this rank holds of a matrix's gradient."""
    assert matrix.grad is not None
    return local_part(matrix.grad)[0]


def orthogonal(matrix: Tensor, group: dict[str, Any]) -> Tensor:
    """The nearest matrix with equal singular values, roughly: a few Newton-Schulz steps bring them near 1."""
    a, b, c = group["ns_coefficients"]
    is_tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if is_tall else matrix
    x = x / x.norm().clamp(min=group["eps"])
    for _ in range(group["ns_steps"]):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.T if is_tall else x


def exchanged_as(device: torch.device) -> torch.dtype:
    """The type in which ranks send matrices to each other and make them orthogonal."""
    return torch.bfloat16 if device.type == "cuda" else torch.float32


class _Owners:
    """All ranks, each of which makes whole matrices of the parts that the ranks of its copy of the model hold."""

    def __init__(
        self, matrices: Sequence[DTensor], update: Callable[[Tensor], Tensor], make: Callable[[Tensor], Tensor]
    ) -> None:
        self.update = update  # matrix -> what this rank holds of its update
        self.make = make  # whole update -> whole direction
        self.matrices = sorted(matrices, key=lambda matrix: (matrix.numel(), matrix.shape), reverse=True)
        self.mesh, self.size = matrices[0].device_mesh, dist.get_world_size()
        assert self.mesh.size() == self.size, "all ranks share the matrices"
        self.num_copies = self.mesh.size(0) if axis_names(self.mesh)[0] == REPLICATE else 1
        self.copy_size = self.size // self.num_copies
        self.copy, self.place = divmod(dist.get_rank(), self.copy_size)

    def directions(self) -> Iterator[tuple[DTensor, Tensor]]:
        """Every matrix with this rank's part of its direction; matrices of one size are made at the same time."""
        for first in range(0, len(self.matrices), self.size):
            bucket = self.matrices[first : first + self.size]
            made = self._made(bucket[self.copy :: self.num_copies])
            for copy in range(min(self.num_copies, len(bucket))):
                share = bucket[copy :: self.num_copies]
                parts = made if copy == self.copy else self._room(_held(share))
                if self.num_copies > 1:
                    dist.broadcast(parts, group=self.mesh.get_group(REPLICATE), group_src=copy)
                yield from zip(share, _split(parts, _held(share)), strict=True)

    def _made(self, share: Sequence[DTensor]) -> Tensor:
        """This rank's parts of the directions that its copy makes; the rank at place i in the copy owns matrix i."""
        parts = self._room(_held(share))
        for matrix, part in zip(share, _split(parts, _held(share)), strict=True):
            part.copy_(self.update(matrix))
        own = share[self.place : self.place + 1]  # one matrix, or none
        in_copy = slice(self.copy * self.copy_size, (self.copy + 1) * self.copy_size)
        where = [part_at(matrix, place) for matrix in own for place in places(self.mesh)[in_copy]]
        shapes = [tuple(each.stop - each.start for each in part) for part in where]
        gathered = self._room(shapes)
        to_owners, to_own = self._sizes(_held(share)), self._sizes(shapes)
        dist.all_to_all_single(gathered, parts, to_own, to_owners)
        for matrix in own:
            whole = gathered.new_empty(matrix.shape)
            for place, part in zip(where, _split(gathered, shapes), strict=True):
                whole[place] = part
            whole = self.make(whole)
            for place, part in zip(where, _split(gathered, shapes), strict=True):
                part.copy_(whole[place])
        dist.all_to_all_single(parts, gathered, to_owners, to_own)
        return parts

    def _room(self, shapes: Sequence[Sequence[int]]) -> Tensor:
        """Memory for parts that lie one after the other."""
        device = self.matrices[0].device
        return torch.empty(sum(map(math.prod, shapes)), dtype=exchanged_as(device), device=device)

    def _sizes(self, shapes: Sequence[Sequence[int]]) -> list[int]:
        """How many numbers go to or come from each of all ranks, where the first ranks of this copy have these."""
        sizes = [0] * self.size
        first = self.copy * self.copy_size
        sizes[first : first + len(shapes)] = map(math.prod, shapes)
        return sizes


def _held(matrices: Sequence[DTensor]) -> list[torch.Size]:
    """The shapes of what this rank holds of matrices."""
    return [matrix.to_local().shape for matrix in matrices]


def _split(flat: Tensor, shapes: Sequence[Sequence[int]]) -> list[Tensor]:
    """Parts that lie one after the other."""
    parts = torch.split(flat, [math.prod(shape) for shape in shapes])
    return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]

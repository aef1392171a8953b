"""What the ranks that share every matrix send each other, forward and backward.

    gather     parts of the rows' slots -> all slots, before a block; backward, gradients are summed and shared out
    scatter    summands of all slots -> sums of a part of them, after a block; backward, gradients are gathered
    total      summands -> their sum on every rank; backward, gradients are summed too
    maximum, sums    over the vocabulary, of which every rank has a part

Between the blocks a rank holds its part of the slots: norms and sums with the stream are computed once among the ranks,
and take as much less memory. A gather and a scatter send as many bytes as the one sum that they take the place of.
Rows whose slots the ranks cannot share evenly are padded with zeros.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist
from torch.distributed._functional_collectives import all_gather_single, reduce_scatter_single
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.functional import embedding, pad


@dataclass(frozen=True, slots=True)
class TensorAxis:
    """The ranks along one axis of a mesh; without one, this rank alone, which sends nothing."""

    mesh: DeviceMesh | None = None

    @property
    def size(self) -> int:
        return 1 if self.mesh is None else self.mesh.size()

    @property
    def rank(self) -> int:
        """This rank's place on the axis."""
        return 0 if self.mesh is None else self.mesh.get_local_rank()

    def gather(self, part: Tensor, slots: int | None = None) -> Tensor:
        """The first `slots` of rows (B, slots, width), or all with their padding, whose slots the ranks share."""
        if self.mesh is None:
            return part
        gathered: Tensor = all_gather_single(part.contiguous(), 1, self.mesh)
        return gathered[:, :slots]

    def scatter(self, summands: Tensor) -> Tensor:
        """This rank's part of the slots of rows (B, slots, width), summed over the ranks."""
        if self.mesh is None:
            return summands
        missing = -summands.shape[1] % self.size
        padded = pad(summands, (0, 0, 0, missing)) if missing else summands.contiguous()
        part: Tensor = reduce_scatter_single(padded, "sum", 1, self.mesh)
        return part

    def join(self, part: Tensor, dim: int) -> Tensor:
        """All of an array whose parts along a dimension the ranks have."""
        if self.mesh is None:
            return part
        joined: Tensor = all_gather_single(part.contiguous(), dim, self.mesh)
        return joined

    def total(self, summand: Tensor) -> Tensor:
        """The sum of all ranks' summands, each of which gets the gradients of all ranks."""
        if self.mesh is None:
            return summand
        total: Tensor = _Total.apply(summand, self.mesh.get_group())  # type: ignore[no-untyped-call]
        return total

    def maximum(self, *values: Tensor) -> tuple[Tensor, ...]:
        """The largest of all ranks' values, by one call for all of them; nothing goes backward through it."""
        return self._reduced(values, dist.ReduceOp.MAX)

    def sums(self, *values: Tensor) -> tuple[Tensor, ...]:
        """The sums of all ranks' values, by one call for all of them; nothing goes backward through it."""
        return self._reduced(values, dist.ReduceOp.SUM)

    def _reduced(self, values: tuple[Tensor, ...], how: dist.ReduceOp.RedOpType) -> tuple[Tensor, ...]:
        if self.mesh is None:
            return values
        together = torch.stack(values)
        dist.all_reduce(together, how, group=self.mesh.get_group())
        return together.unbind()


class _Total(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, summand: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        total = summand.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor | None, ...]:
        gradient = outer[0].clone()
        dist.all_reduce(gradient, group=ctx.group)
        return gradient, None


ALONE = TensorAxis()


@dataclass(frozen=True, slots=True)
class Columns:
    """Where tokens lie among a rank's part of the vocabulary; every token is in the part of one rank."""

    at: Tensor  # columns of the part; any one where the token is another rank's
    outside: Tensor | None  # where the token is another rank's; None where there is one rank

    @classmethod
    def of(cls, tokens: Tensor, axis: TensorAxis, size: int) -> "Columns":
        """Those of tokens in parts of this size."""
        if axis.mesh is None:
            return cls(tokens, None)
        at = tokens.long() - axis.rank * size
        outside = (at < 0) | (at >= size)
        return cls(at.masked_fill(outside, 0), outside)

    def own(self, values: Tensor) -> Tensor:
        """Values of the tokens, 0 where the token is another rank's."""
        if self.outside is None:
            return values
        return values.masked_fill(self.outside.view(*self.outside.shape, *[1] * (values.ndim - self.outside.ndim)), 0)


def embed(tokens: Tensor, rows: Tensor, axis: TensorAxis) -> Tensor:
    """Vectors (B, T, width) of the tokens in this rank's rows of an embedding, 0 for those in the rows of others."""
    columns = Columns.of(tokens, axis, len(rows))
    return columns.own(embedding(columns.at, rows))

"""What the ranks that share the slots of rows send each other, forward and backward.

    gather         parts of rows -> whole rows on every rank; backward, gradients are summed and shared out
    to_heads       parts of rows with all heads -> whole rows with a part of the heads
    from_heads     and back

Each is one call between the ranks for whatever it is given; arrays come in the order of rows' slots.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributed._functional_collectives import all_gather_single, all_to_all_single_autograd
from torch.distributed.device_mesh import DeviceMesh

from trivium.engine.base import ContextMethod
from trivium.engine.torch.context_parallel.slots import SlotShare


@dataclass(frozen=True, slots=True)
class ContextAxis:
    """The ranks that share rows; without a mesh this rank alone, which has them whole."""

    mesh: DeviceMesh | None = None
    method: ContextMethod = "gather"

    @property
    def size(self) -> int:
        return 1 if self.mesh is None else self.mesh.size()

    @property
    def rank(self) -> int:
        """This rank's place on the axis."""
        return 0 if self.mesh is None else self.mesh.get_local_rank()

    def share(self, seq_len: int) -> SlotShare:
        """This rank's slots of rows of a length."""
        return SlotShare(self.rank, self.size, seq_len)

    def gather(self, part: Tensor) -> Tensor:
        """Whole rows (n, B, slots, ...) of this rank's slots of them; n arrays at once."""
        assert self.mesh is not None, "there are others to ask"
        gathered = all_gather_single(part.contiguous(), 0, self.mesh)
        return _in_order(gathered.view(self.size, *part.shape))

    def whole_rows(self, part: Tensor, seq_len: int) -> Tensor:
        """Rows (B, seq_len) of this rank's slots of them (B, slots)."""
        return part if self.mesh is None else self.gather(part[None])[0][:, :seq_len]

    def to_heads(self, queries: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Whole rows (B, slots, heads / ranks, head_dim) of this rank's slots with all heads."""
        arrays = (queries, keys, values)
        by_rank = torch.cat([_parts(each, 2, self.size) for each in arrays], 3)
        exchanged = self._exchanged(by_rank.movedim(2, 0))[:, None]  # (ranks, 1, B, slots, heads / ranks, head_dim)
        of_each = [each.shape[2] // self.size for each in arrays]
        own_queries, own_keys, own_values = torch.split(_in_order(exchanged)[0], of_each, 2)
        return own_queries, own_keys, own_values

    def from_heads(self, rows: Tensor) -> Tensor:
        """This rank's slots with all heads, of whole rows with its part of them."""
        stretches = _parts(rows, 1, 2 * self.size).unbind(1)
        by_rank = [torch.cat((stretches[rank], stretches[-1 - rank]), 1) for rank in range(self.size)]
        return self._exchanged(torch.stack(by_rank)).movedim(0, 2).flatten(2, 3)

    def _exchanged(self, by_rank: Tensor) -> Tensor:
        """For each rank what it has for this one, of what this one has for each rank."""
        assert self.mesh is not None, "there are others to ask"
        exchanged: Tensor = all_to_all_single_autograd(by_rank.contiguous(), None, None, self.mesh)
        return exchanged


def _in_order(by_rank: Tensor) -> Tensor:
    """Every rank's two stretches (ranks, n, B, slots, ...) -> rows (n, B, all slots, ...), by one copy."""
    stretches = [_parts(part, 2, 2).unbind(2) for part in by_rank.unbind(0)]
    return torch.cat([first for first, _ in stretches] + [last for _, last in reversed(stretches)], 2)


def _parts(array: Tensor, dim: int, count: int) -> Tensor:
    """An array whose dimension has become two: its parts, and what each has."""
    return array.view(*array.shape[:dim], count, -1, *array.shape[dim + 1 :])


WHOLE = ContextAxis()

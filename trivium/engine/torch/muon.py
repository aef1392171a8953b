"""Muon for CPUs and for matrices that ranks share; torch's own is written for one GPU, in bfloat16.

On a CPU bfloat16 products are emulated: a step of a 9M-parameter model takes torch's Muon 13 s and this one, in
float32, 0.4 s. Where ranks share a matrix, its update is gathered, one rank makes it orthogonal while the others do
the same for other matrices, and each keeps its part. State, settings and update are torch's, so that either
continues what the other began; they differ by the rounding of bfloat16.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist
from torch.distributed.tensor import DTensor
from torch.optim import Muon

from trivium.engine.torch.parallel import like, whole


class WideMuon(Muon):
    """torch.optim.Muon for CPUs and for many ranks."""

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """One update of every matrix that has a gradient."""
        assert closure is None, "gradients are made before the step"
        for group in self.param_groups:
            with_gradient = [matrix for matrix in group["params"] if matrix.grad is not None]
            updates = [self._averaged(matrix, matrix.grad, group) for matrix in with_gradient]
            for matrix, direction in zip(with_gradient, _directions(updates, group), strict=True):
                outputs, inputs = matrix.shape
                matrix.mul_(1 - group["lr"] * group["weight_decay"])
                matrix.add_(direction, alpha=-group["lr"] * math.sqrt(max(1, outputs / inputs)))

    def _averaged(self, matrix: Tensor, gradient: Tensor, group: dict[str, Any]) -> Tensor:
        state = self.state[matrix]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(gradient)
        average = state["momentum_buffer"].lerp_(gradient, 1 - group["momentum"])
        return gradient.lerp(average, group["momentum"])


def _directions(updates: list[Tensor], group: dict[str, Any]) -> Iterator[Tensor]:
    """Every update, orthogonal; of shared ones, each rank makes every so manieth and sends it to the others."""
    if not updates or not isinstance(updates[0], DTensor):
        yield from (orthogonal(update, group) for update in updates)
        return
    rank, size = dist.get_rank(), dist.get_world_size()
    for first in range(0, len(updates), size):
        some = updates[first : first + size]
        gathered = [whole(update) for update in some]
        if rank < len(gathered):
            gathered[rank] = orthogonal(gathered[rank], group).to(gathered[rank].dtype).contiguous()
        for source, (update, direction) in enumerate(zip(some, gathered, strict=True)):
            dist.broadcast(direction, src=source)
            yield like(update, direction)


def orthogonal(matrix: Tensor, group: dict[str, Any]) -> Tensor:
    """The nearest matrix with equal singular values, roughly: a few Newton-Schulz steps bring them near 1."""
    a, b, c = group["ns_coefficients"]
    is_tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.bfloat16() if matrix.is_cuda else matrix
    x = x.T if is_tall else x
    x = x / x.norm().clamp(min=group["eps"])
    for _ in range(group["ns_steps"]):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.T if is_tall else x

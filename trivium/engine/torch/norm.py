"""A vector -> the same direction at unit mean square, times a weight.

torch has one kernel for this on a GPU; on a CPU it becomes eight passes over memory, so there it is written
out, at a third of the time. In bfloat16 the arithmetic is float32.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Partial
from torch.nn.functional import rms_norm


class RMSNorm(nn.Module):
    """Root-mean-square norm over the last dimension."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, vectors: Tensor) -> Tensor:
        """Normalised vectors, in the type they came in."""
        weight: Tensor = self.weight
        if isinstance(weight, DTensor):  # of heads that are split over ranks: each learns from its own
            weight = weight.to_local(grad_placements=[Partial()])
        if vectors.device.type != "cpu" or vectors.dtype != torch.float32 or torch.compiler.is_compiling():
            wide = rms_norm(vectors.float(), weight.shape, weight.float(), self.eps)
            return wide.to(vectors.dtype)
        flat = vectors.reshape(-1, vectors.shape[-1])
        normed: Tensor = _RMSNorm.apply(flat, weight, self.eps)  # type: ignore[no-untyped-call]
        return normed.view_as(vectors)


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, vectors: Tensor, weight: Tensor, eps: float) -> Tensor:
        mean_square = torch.linalg.vecdot(vectors, vectors).div_(vectors.shape[-1])
        inverse = mean_square.add_(eps).rsqrt_().unsqueeze(-1)
        ctx.save_for_backward(vectors, weight, inverse)
        normed: Tensor = vectors * inverse
        return normed.mul_(weight)

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor | None, ...]:
        vectors, weight, inverse = ctx.saved_tensors
        products = outer[0] * vectors
        weight_gradient = products.T @ inverse.squeeze(-1)
        # What a longer vector would gain is taken back: the part of the gradient along the vector itself.
        along = (products @ weight).unsqueeze(-1) * inverse**3 / -vectors.shape[-1]
        gradient = (outer[0] * weight).mul_(inverse).addcmul_(vectors, along)
        return gradient, weight_gradient, None

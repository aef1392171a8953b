"""AdEMAMix (arXiv 2409.03137): AdamW with a second, slow average of gradients beside the first.

    m1 <- beta1 m1 + (1 - beta1) g      m2 <- beta3 m2 + (1 - beta3) g      v <- beta2 v + (1 - beta2) g * g
    w  <- w (1 - lr * decay) - lr (m1 / (1 - beta1^t) + alpha m2) / (sqrt(v / (1 - beta2^t)) + eps)

alpha and beta3 rise in their warm-ups, which the plan counts; they are set in the groups before each step. All of it
goes element by element, on what a rank holds, so that any way of sharing the parameters is right. It keeps three
numbers for each parameter, where AdamW keeps two, and two more of a few tensors at a time while it updates.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from math import sqrt
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from trivium.engine.torch.parallel import local_part

NUMBERS_AT_A_TIME = 2**25  # of parameters that are updated together, unless one tensor has more
AVERAGES = ("exp_avg", "exp_avg_slow", "exp_avg_sq")


class AdEMAMix(Optimizer):
    """Groups have lr, weight_decay, alpha and beta3, each set before a step."""

    def __init__(self, params: Iterable[Any], betas: tuple[float, float] = (0.9, 0.95), eps: float = 1e-8) -> None:
        rates = {"lr": 0.0, "weight_decay": 0.0, "alpha": 0.0, "beta3": 0.0}
        super().__init__(params, {"betas": betas, "eps": eps, **rates})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        assert closure is None, "gradients are made before the step"
        for group in self.param_groups:
            by_step: dict[int, list[Tensor]] = {}  # those that were frozen for a while have had fewer updates
            for parameter in group["params"]:
                if parameter.grad is not None:
                    by_step.setdefault(self._count(parameter), []).append(parameter)
            for parameters in by_step.values():
                for part in _parts(parameters):
                    self._update(part, group)

    def _update(self, parameters: Sequence[Tensor], group: dict[str, Any]) -> None:
        step = self.state[parameters[0]]["step"]
        (beta1, beta2), beta3 = group["betas"], group["beta3"]
        weights = _held(parameters)
        gradients = _held([parameter.grad for parameter in parameters if parameter.grad is not None])
        fast, slow, squares = (_held([self.state[each][name] for each in parameters]) for name in AVERAGES)
        torch._foreach_lerp_(fast, gradients, 1 - beta1)
        torch._foreach_lerp_(slow, gradients, 1 - beta3)
        torch._foreach_mul_(squares, beta2)
        torch._foreach_addcmul_(squares, gradients, gradients, 1 - beta2)
        divisors = torch._foreach_sqrt(squares)
        torch._foreach_div_(divisors, sqrt(1 - beta2**step))
        torch._foreach_add_(divisors, group["eps"])
        directions = torch._foreach_div(fast, 1 - beta1**step)
        torch._foreach_add_(directions, slow, alpha=group["alpha"])
        torch._foreach_mul_(weights, 1 - group["lr"] * group["weight_decay"])
        torch._foreach_addcdiv_(weights, directions, divisors, -group["lr"])

    def _count(self, parameter: Tensor) -> int:
        """One more update of a parameter, whose averages start as zeros; how many it has had."""
        state = self.state[parameter]
        if not state:
            state |= {"step": 0, **{name: torch.zeros_like(parameter) for name in AVERAGES}}
        state["step"] += 1
        return int(state["step"])


def _parts(parameters: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Parameters that are updated together."""
    part: list[Tensor] = []
    for parameter in parameters:
        if part and sum(each.numel() for each in part) + parameter.numel() > NUMBERS_AT_A_TIME:
            yield part
            part = []
        part.append(parameter)
    if part:
        yield part


def _held(tensors: Sequence[Tensor]) -> list[Tensor]:
    """What this rank holds of each."""
    return [local_part(tensor)[0] for tensor in tensors]

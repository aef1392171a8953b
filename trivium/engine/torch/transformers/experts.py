"""Experts under autocast, and the loss that keeps them balanced.

transformers multiplies all experts of a layer by one grouped product, which autocast does not know: weights are cast
here to the type that flows. The balancing loss is the family's own function of the routers' logits: for each
micro-batch of its slots without padding, over all layers together. A step's is the mean over its micro-batches on
all ranks, each weighted by its loss tokens, as every other term of the objective is.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers.integrations.moe import ExpertsInterface, batched_mm_experts_forward, grouped_mm_experts_forward

NAME, COUNTED = "trivium", "trivium_counted"


class _Cast:
    """A module of experts whose matrices are of another type."""

    def __init__(self, module: nn.Module, dtype: torch.dtype) -> None:
        self._module, self._dtype = module, dtype

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._module, name)
        return found.to(self._dtype) if isinstance(found, nn.Parameter) else found


def grouped(module: nn.Module, hidden: Tensor, *routes: Tensor) -> Tensor:
    """All experts' products with the tokens that are sent to them."""
    device = hidden.device.type
    inner: Any = module
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
        inner, hidden = _Cast(module, dtype), hidden.to(dtype)
    gathered: Tensor = grouped_mm_experts_forward(inner, hidden, *routes)
    return gathered


@dataclass(frozen=True, slots=True)
class Balance:
    """How a family keeps its experts balanced."""

    loss: Callable[
        ..., Tensor
    ]  # the family's: of all routers' logits, experts, experts for a token, and slots to count
    coefficient: float
    experts: int
    for_token: int

    def of(self, router_logits: tuple[Tensor, ...], counts: Tensor | None) -> Tensor:
        """The weighted loss of a micro-batch; `counts` (B, T) is 1 where a slot is no padding, None where all are."""
        logits = tuple(each for each in router_logits if each is not None)
        return self.coefficient * self.loss(logits, self.experts, self.for_token, counts)


def balance_of(inner: nn.Module) -> Balance | None:
    """The balancing loss of a model of transformers; None where it has no experts, or balances them without one."""
    found = getattr(sys.modules[type(inner).__module__], "load_balancing_loss_func", None)
    config: Any = inner.config
    coefficient = float(getattr(config, "router_aux_loss_coef", 0.0) or 0.0)
    experts = getattr(inner, "num_experts", None) or getattr(config, "num_local_experts", None)
    for_token = getattr(inner, "num_experts_per_tok", None) or getattr(config, "num_experts_per_tok", None)
    if found is None or not coefficient or not experts or not for_token:
        return None
    return Balance(found, coefficient, int(experts), int(for_token))


ExpertsInterface.register(NAME, grouped)
ExpertsInterface.register(COUNTED, batched_mm_experts_forward)

"""Experts under autocast, and the loss that keeps them balanced.

transformers multiplies all experts of a layer by one grouped product, which autocast does not know: weights are cast
here to the type that flows. The balancing loss is the one that transformers' families share, of the routers' logits:
for each micro-batch of its slots without padding, over all layers together. A step's is the mean over its
micro-batches on all ranks, each weighted by its loss tokens, as every other term of the objective is.
"""

import sys
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import softmax
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
    """The balancing loss of the Switch Transformer: experts that get many tokens should be less likely."""

    coefficient: float
    experts: int
    for_token: int  # experts that a token is sent to

    def of(self, router_logits: tuple[Tensor, ...], counts: Tensor | None) -> Tensor:
        """The weighted loss of a micro-batch; `counts` (B, T) is 0 in padding, else 1; None: no slot is padding."""
        first = router_logits[0]
        slots = first.new_ones(len(first), dtype=torch.float32) if counts is None else counts.flatten().float()
        sent, likely = (slots.new_zeros(self.experts) for _ in range(2))
        for logits in router_logits:
            shares = softmax(logits.float(), -1)
            chosen = shares.topk(self.for_token, -1).indices
            sent = sent.scatter_add(0, chosen.flatten(), slots.repeat_interleave(self.for_token))
            likely = likely + slots @ shares
        total = len(router_logits) * slots.sum().clamp(min=1)  # a rank may have padding alone of a row that it shares
        return self.coefficient * self.experts * torch.dot(sent / total, likely / total)


def balance_of(inner: nn.Module) -> Balance | None:
    """The balancing loss of a model of transformers; None where it has no experts, or balances them without one."""
    has_one = hasattr(sys.modules[type(inner).__module__], "load_balancing_loss_func")
    config: Any = inner.config
    coefficient = float(getattr(config, "router_aux_loss_coef", 0.0) or 0.0)
    experts = getattr(inner, "num_experts", None) or getattr(config, "num_local_experts", None)
    for_token = getattr(inner, "num_experts_per_tok", None) or getattr(config, "num_experts_per_tok", None)
    if not has_one or not coefficient or not experts or not for_token:
        return None
    return Balance(coefficient, int(experts), int(for_token))


ExpertsInterface.register(NAME, grouped)
ExpertsInterface.register(COUNTED, batched_mm_experts_forward)

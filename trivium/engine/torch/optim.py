"""Gradients -> updates: AdamW for everything, or Muon for the layers' matrices and AdamW for the rest.

Parameters fall into the plan's four groups by name (matrix, embedding, unembedding, rest), each with its own
learning rate at every step. A tied embedding is an embedding. Fused AdamW takes a tenth of the time of a loop
over tensors. An optimizer of the user's own has its own groups, whose learning rates the schedule multiplies.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from torch.optim import AdamW, Muon, Optimizer

from trivium.engine.base import NoDecay, OptimizerSettings, OwnOptimizer
from trivium.engine.torch.muon import WideMuon
from trivium.errors import ResumeError
from trivium.plan.plan import StepSettings

NUMBER = "!"  # marks a part that is a plain number: an optimizer of the user's own may keep one, such as its step


@dataclass(frozen=True, slots=True)
class Place:
    """Where a parameter belongs: its group's learning rate, and whether weight decay applies to it."""

    group: str
    decays: bool


def place_of(name: str, no_decay: tuple[NoDecay, ...]) -> Place:
    """A parameter's place, by its name."""
    *_, owner, kind = name.split(".")
    if owner == "embedding":
        return Place("embedding", "embeddings" not in no_decay)
    if owner == "unembedding":
        return Place("unembedding", True)
    if kind == "bias":
        return Place("rest", "biases" not in no_decay)
    if owner.endswith("norm"):
        return Place("rest", "norms" not in no_decay)
    return Place("matrix", True)


class Optimizers:
    """One or two torch optimizers, driven by a step's settings."""

    def __init__(self, model: nn.Module, settings: OptimizerSettings, own: OwnOptimizer | None = None) -> None:
        self.settings = settings
        self.names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
        self.each = self._ours() if own is None else [_checked(own(list(model.named_parameters())))]
        for optimizer in self.each:
            for group in optimizer.param_groups:
                group["peak_lr"] = group["lr"]

    def _ours(self) -> list[Optimizer]:
        settings = self.settings
        by_place: dict[Place, list[Tensor]] = {}
        for parameter, name in self.names.items():
            by_place.setdefault(place_of(name, settings.no_decay), []).append(parameter)
        by_adam: list[dict[str, Any]] = []
        by_muon: list[dict[str, Any]] = []
        for place, parameters in by_place.items():
            groups = by_muon if settings.name == "muon" and place.group == "matrix" else by_adam
            groups.append({"params": parameters, "place": place})
        each: list[Optimizer] = [AdamW(by_adam, betas=settings.betas, eps=settings.eps, fused=True)]
        if by_muon:
            on_cpu = next(iter(self.names)).device.type == "cpu"
            each.append(WideMuon(by_muon) if on_cpu else Muon(by_muon))
        return each

    def gradient_norm(self) -> Tensor:
        """Over all parameters."""
        return get_total_norm([parameter.grad for parameter in self.names if parameter.grad is not None])

    def forget(self) -> None:
        """Drop the gradients."""
        for optimizer in self.each:
            optimizer.zero_grad()

    def step(self, now: StepSettings, norm: Tensor) -> None:
        """Clip by the gradients' norm and update."""
        if self.settings.clip is not None:
            clip_grads_with_norm_(self.names, self.settings.clip, norm)
        for optimizer in self.each:
            for group in optimizer.param_groups:
                _set(group, now)
            optimizer.step()

    def state(self) -> Iterator[tuple[str, Tensor]]:
        """All that updates depend on beside weights, named `parameter:part`; empty before the first step."""
        for optimizer in self.each:
            for parameter, parts in optimizer.state.items():
                for part, value in parts.items():
                    mark = "" if isinstance(value, Tensor) else NUMBER
                    yield f"{self.names[parameter]}:{part}{mark}", _as_tensor(part, value)

    def load(self, state: dict[str, Tensor]) -> None:
        """Take over what `state` gave, to the bit."""
        parts_of: dict[str, dict[str, Any]] = {}
        for key, tensor in state.items():
            name, _, part = key.rpartition(":")
            value = tensor.item() if part.endswith(NUMBER) else tensor
            parts_of.setdefault(name, {})[part.removesuffix(NUMBER)] = value
        for optimizer in self.each:
            optimizer.state.clear()
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    name = self.names[parameter]
                    if name in parts_of:
                        optimizer.state[parameter] = _parts_for(optimizer, name, parts_of[name])


def _set(group: dict[str, Any], now: StepSettings) -> None:
    """A group's rates at a step; one of the user's own has no place, and its rate follows the schedule."""
    place: Place | None = group.get("place")
    if place is None:
        group["lr"] = group["peak_lr"] * now.lr_multiplier
        return
    group["lr"] = now.lr[place.group]
    group["weight_decay"] = now.weight_decay if place.decays else 0.0
    if "momentum" in group:
        group["momentum"] = now.momentum


def _checked(own: Any) -> Optimizer:
    if isinstance(own, Optimizer):
        return own
    raise TypeError(f"optimizer() gave a function that made {own!r}, not a torch.optim.Optimizer")


def _as_tensor(part: str, value: Any) -> Tensor:
    """Checkpoints hold tensors alone."""
    if isinstance(value, Tensor):
        return value
    if isinstance(value, int | float):
        return torch.tensor(value, dtype=torch.float64 if isinstance(value, float) else torch.int64)
    raise TypeError(f"the optimizer keeps {part} as {type(value).__name__}; a checkpoint holds tensors and numbers")


def _parts_for(optimizer: Optimizer, name: str, parts: dict[str, Any]) -> dict[str, Any]:
    wanted = {AdamW: {"step", "exp_avg", "exp_avg_sq"}, Muon: {"momentum_buffer"}, WideMuon: {"momentum_buffer"}}
    expected = wanted.get(type(optimizer), set(parts))
    if parts.keys() != expected:
        was = f"the optimizer kept {', '.join(sorted(parts))} of {name}, and now keeps {', '.join(sorted(expected))}"
        raise ResumeError(f"{was}. Put optimizer.name back, or reset the optimizer in a new stage.")
    return parts

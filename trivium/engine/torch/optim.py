"""Gradients -> updates: AdamW for everything, or Muon for the layers' matrices and AdamW for the rest.

Parameters fall into the plan's four groups by name (matrix, embedding, unembedding, rest), each with its own
learning rate at every step. A tied embedding is an embedding. Fused AdamW takes a tenth of the time of a loop
over tensors.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from torch.optim import AdamW, Muon

from trivium.engine.base import NoDecay, OptimizerSettings
from trivium.engine.torch.muon import WideMuon
from trivium.errors import ResumeError
from trivium.plan.plan import StepSettings


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

    def __init__(self, model: nn.Module, settings: OptimizerSettings) -> None:
        self.settings = settings
        self.names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
        by_place: dict[Place, list[Tensor]] = {}
        for parameter, name in self.names.items():
            by_place.setdefault(place_of(name, settings.no_decay), []).append(parameter)
        by_adam: list[dict[str, Any]] = []
        by_muon: list[dict[str, Any]] = []
        for place, parameters in by_place.items():
            groups = by_muon if settings.name == "muon" and place.group == "matrix" else by_adam
            groups.append({"params": parameters, "place": place})
        self.each: list[AdamW | Muon] = [AdamW(by_adam, betas=settings.betas, eps=settings.eps, fused=True)]
        if by_muon:
            on_cpu = next(iter(self.names)).device.type == "cpu"
            self.each.append(WideMuon(by_muon) if on_cpu else Muon(by_muon))

    def step(self, now: StepSettings) -> Tensor:
        """Clip, update, forget the gradients; gives their norm before clipping."""
        norm = get_total_norm([parameter.grad for parameter in self.names if parameter.grad is not None])
        if self.settings.clip is not None:
            clip_grads_with_norm_(self.names, self.settings.clip, norm)
        for optimizer in self.each:
            for group in optimizer.param_groups:
                place: Place = group["place"]
                group["lr"] = now.lr[place.group]
                group["weight_decay"] = now.weight_decay if place.decays else 0.0
                if isinstance(optimizer, Muon):
                    group["momentum"] = now.momentum
            optimizer.step()
            optimizer.zero_grad()
        return norm

    def state(self) -> Iterator[tuple[str, Tensor]]:
        """All that updates depend on beside weights, named `parameter:part`; empty before the first step."""
        for optimizer in self.each:
            for parameter, parts in optimizer.state.items():
                for part, tensor in parts.items():
                    yield f"{self.names[parameter]}:{part}", tensor

    def load(self, state: dict[str, Tensor]) -> None:
        """Take over what `state` gave, to the bit."""
        parts_of: dict[str, dict[str, Tensor]] = {}
        for key, tensor in state.items():
            name, _, part = key.rpartition(":")
            parts_of.setdefault(name, {})[part] = tensor
        for optimizer in self.each:
            optimizer.state.clear()
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    name = self.names[parameter]
                    if name in parts_of:
                        optimizer.state[parameter] = _parts_for(optimizer, name, parts_of[name])


def _parts_for(optimizer: AdamW | Muon, name: str, parts: dict[str, Tensor]) -> dict[str, Tensor]:
    wanted = {"momentum_buffer"} if isinstance(optimizer, Muon) else {"step", "exp_avg", "exp_avg_sq"}
    if parts.keys() != wanted:
        was = f"the optimizer kept {', '.join(sorted(parts))} of {name}, and now keeps {', '.join(sorted(wanted))}"
        raise ResumeError(f"{was}. Put optimizer.name back, or reset the optimizer in a new stage.")
    return parts

"""Gradients -> updates: AdamW or AdEMAMix for everything, or Muon for the layers' matrices and AdamW for the rest.

Parameters fall into the plan's four groups by name (matrix, embedding, unembedding, rest), each with its own
learning rate at every step. A tied embedding is an embedding. Fused AdamW takes a tenth of the time of a loop
over tensors. An optimizer of an installed package is given the same groups. One that a Trainer's method makes has its
own, whose learning rates the schedule multiplies.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import AdamW, Muon, Optimizer

from trivium.engine.base import OptimizerSettings, OwnOptimizer, StepSettings
from trivium.engine.packaged import is_packaged, packaged
from trivium.engine.parameters import ParameterGroup, parameter_group
from trivium.engine.torch.checkpoint.parts import SavedTensor
from trivium.engine.torch.optimizers.ademamix import AdEMAMix
from trivium.engine.torch.optimizers.muon import WideMuon
from trivium.engine.torch.parallel import scale_and_clip
from trivium.errors import ResumeError, UsageError

WRONG_KIND = (
    "{}, and the torch engine takes a torch.optim.Optimizer class, or a function of the named parameters that makes "
    'one. Return that, or set engine.name = "jax".'
)
NUMBER = "!"  # marks a part that is a plain number: an optimizer of the user's own may keep one, such as its step


class Optimizers:
    """One or two torch optimizers, driven by a step's settings."""

    def __init__(
        self,
        weights: Mapping[str, nn.Parameter],
        settings: OptimizerSettings,
        own: OwnOptimizer | None = None,
        grouped_as: Callable[[str], str] = str,
    ) -> None:
        self.settings, self.own, self.grouped_as = settings, own, grouped_as
        self.names: dict[Tensor, str] = {parameter: name for name, parameter in weights.items()}
        self.each = self._ours() if own is None else [made_by(own, weights)]
        for optimizer in self.each:
            for group in optimizer.param_groups:
                group["peak_lr"] = group["lr"]

    def _ours(self) -> list[Optimizer]:
        settings = self.settings
        by_kind: dict[tuple[ParameterGroup, Any], list[Tensor]] = {}
        for parameter, name in self.names.items():
            # One fused update cannot take parameters of several meshes.
            mesh = parameter.device_mesh if isinstance(parameter, DTensor) else None
            kind = parameter_group(self.grouped_as(name), settings.no_decay, parameter.ndim)
            by_kind.setdefault((kind, mesh), []).append(parameter)
        by_adam: list[dict[str, Any]] = []
        by_muon: list[dict[str, Any]] = []
        for (kind, _), parameters in by_kind.items():
            groups = by_muon if settings.name == "muon" and kind.name == "matrix" else by_adam
            groups.append({"params": parameters, "kind": kind})
        if is_packaged(settings.name):
            return [packaged_optimizer(settings, by_adam)]
        if settings.name == "ademamix":
            return [AdEMAMix(by_adam, betas=settings.betas, eps=settings.eps)]
        each: list[Optimizer] = [AdamW(by_adam, betas=settings.betas, eps=settings.eps, fused=True)]
        if by_muon:
            first = next(iter(self.names))
            ours = first.device.type == "cpu" or isinstance(first, DTensor)
            each.append(WideMuon(by_muon) if ours else Muon(by_muon))
        return each

    def changed_to(self, settings: OptimizerSettings) -> "Optimizers":
        """The same optimizer, and its state, with other settings; one of the user's own has its clipping alone here."""
        if settings == self.settings:
            return self
        if self.own is not None:
            self.settings = settings
            return self
        weights = {name: parameter for parameter, name in self.names.items()}
        changed = Optimizers(weights, settings, grouped_as=self.grouped_as)  # type: ignore[arg-type]
        kept = {parameter: parts for optimizer in self.each for parameter, parts in optimizer.state.items()}
        for optimizer in changed.each:
            for group in optimizer.param_groups:
                optimizer.state.update({each: kept[each] for each in group["params"] if each in kept})
        return changed

    def gradients(self) -> list[Tensor]:
        return [parameter.grad for parameter in self.names if parameter.grad is not None]

    def zero_grad(self) -> None:
        for optimizer in self.each:
            optimizer.zero_grad()

    def step(self, now: StepSettings, norm: Tensor, scale: float = 1.0) -> None:
        """Multiply gradients by a scale, which gives them this norm, clip and update."""
        scale_and_clip(scale, norm, self.settings.grad_clip, self.names)
        for optimizer in self.each:
            for group in optimizer.param_groups:
                _set(optimizer, group, now)
            optimizer.step()

    def state(self) -> Iterator[tuple[str, Tensor]]:
        """All that updates depend on beside weights, named `parameter:part`; empty before the first step."""
        for optimizer in self.each:
            for parameter, parts in optimizer.state.items():
                for part, value in parts.items():
                    mark = "" if isinstance(value, Tensor) else NUMBER
                    yield f"{self.names[parameter]}:{part}{mark}", _as_tensor(part, value)

    def room_for(self, saved: Mapping[str, SavedTensor]) -> dict[str, Tensor]:
        """Tensors into which a saved state can be read, laid out as their parameters are."""
        parameters = {name: parameter for parameter, name in self.names.items()}
        return {key: _room(parameters.get(key.rpartition(":")[0]), facts) for key, facts in saved.items()}

    def load(self, state: Mapping[str, Tensor]) -> None:
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


def _room(parameter: Tensor | None, facts: SavedTensor) -> Tensor:
    """Empty, of the saved type and shape; what is not shaped as its parameter is held whole by every rank."""
    dtype = facts.dtype
    if parameter is None:
        return torch.empty(facts.shape, dtype=dtype)
    if parameter.shape == facts.shape:
        return torch.empty_like(parameter, dtype=dtype, requires_grad=False)
    room = torch.empty(facts.shape, dtype=dtype, device=parameter.device)
    if isinstance(parameter, DTensor) and room.ndim:
        return distribute_tensor(room, parameter.device_mesh, src_data_rank=None)
    return room


def _set(optimizer: Optimizer, group: dict[str, Any], now: StepSettings) -> None:
    """A group's rates at a step; one of the user's own has no kind, and its rate follows the schedule."""
    kind: ParameterGroup | None = group.get("kind")
    if kind is None:
        group["lr"] = group["peak_lr"] * now.lr_multiplier
        return
    group["lr"] = now.lr[kind.name]
    if "weight_decay" in group:
        group["weight_decay"] = now.weight_decay if kind.decays else 0.0
    if isinstance(optimizer, Muon):
        group["momentum"] = now.momentum
    elif isinstance(optimizer, AdEMAMix):
        group["alpha"], group["beta3"] = now.alpha, now.beta3


def made_by(own: OwnOptimizer, weights: Mapping[str, nn.Parameter]) -> Optimizer:
    """The optimizer that a class makes of parameters, or a function of named ones."""
    inner = own.func if isinstance(own, partial) else own
    if not callable(own):
        raise UsageError(f"Trainer.optimizer() returned {WRONG_KIND.format('an optax transformation')}")
    made = own(list(weights.values() if isinstance(inner, type) else weights.items()))
    if not isinstance(made, Optimizer):
        raise UsageError(f"Trainer.optimizer() returned {WRONG_KIND.format(f'what makes a {type(made).__name__}')}")
    try:
        inspect.signature(made.step).bind()
    except TypeError:
        what = f"Trainer.optimizer() made a {type(made).__name__}, whose step needs a closure that computes the loss"
        raise UsageError(f"{what}. The engine takes one pass a step: return an optimizer that needs none.") from None
    return made


def packaged_optimizer(settings: OptimizerSettings, groups: list[dict[str, Any]]) -> Optimizer:
    """The optimizer that an installed package's class or function makes of our groups."""
    make = packaged(settings.name)
    try:
        made = make(groups, **dict(settings.options))
    except (TypeError, ValueError) as error:
        raise UsageError(f'optimizer.name = "{settings.name}": {error}. Look at optimizer.options.') from error
    if not isinstance(made, Optimizer):
        what = f"makes a {type(made).__name__} of groups of parameters, and torch takes a torch.optim.Optimizer"
        raise UsageError(f'optimizer.name = "{settings.name}": {what}.')
    return made


def _as_tensor(part: str, value: Any) -> Tensor:
    """Checkpoints hold tensors alone."""
    if isinstance(value, Tensor):
        return value
    if isinstance(value, int | float):
        return torch.tensor(value, dtype=torch.float64 if isinstance(value, float) else torch.int64)
    raise TypeError(f"the optimizer keeps {part} as {type(value).__name__}; a checkpoint holds tensors and numbers")


def _parts_for(optimizer: Optimizer, name: str, parts: dict[str, Any]) -> dict[str, Any]:
    adam = {"step", "exp_avg", "exp_avg_sq"}
    wanted = {AdamW: adam, AdEMAMix: {*adam, "exp_avg_slow"}, Muon: {"momentum_buffer"}, WideMuon: {"momentum_buffer"}}
    expected = wanted.get(type(optimizer), set(parts))
    if parts.keys() != expected:
        was = f"the optimizer kept {', '.join(sorted(parts))} of {name}, and now keeps {', '.join(sorted(expected))}"
        raise ResumeError(f"{was}. Put optimizer.name back, or reset the optimizer in a new stage.")
    return parts

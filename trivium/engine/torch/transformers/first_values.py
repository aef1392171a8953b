"""A family's own rule of first values -> for every parameter and buffer what it begins with, without holding any.

transformers' `_init_weights` calls functions such as `normal_(weight, mean, std)` on a module's tensors. Here it is
called on a model without storage, with functions that only remember what was asked: matrices are then drawn by our own
draws (seed, name and place decide each element, so that any layout of ranks draws the same), constants are filled, and
what a family computes (rotary frequencies) is kept. What no rule names is 0 for a bias, 1 for a norm, normal else.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import PreTrainedModel, initialization

from trivium.engine.draw import normal_values
from trivium.errors import ConfigError, Problem

Where = tuple[slice, ...]


@dataclass(frozen=True, slots=True)
class Rule:
    """What a tensor begins with: normal around a mean, or copies of given values, or one value."""

    std: float | None = None
    value: float = 0.0  # of all elements, or their mean
    given: Tensor | None = None
    empty_rows: tuple[int, ...] = ()  # of an embedding: those of padding, which are 0
    unknown: str | None = None  # the name of a function that is not built here

    def part(self, name: str, shape: tuple[int, ...], where: Where, seed: int) -> NDArray[np.float32]:
        """The part of a tensor that a rank holds."""
        if self.unknown is not None:
            what = f"the first values of {name} are drawn by {self.unknown}, which is not built"
            raise ConfigError([Problem("model.family", f"{what}. Start from a folder: model.init.")])
        if self.given is not None:
            found: NDArray[np.float32] = self.given.expand(shape)[where].float().numpy()
            return found
        bounds = [each.indices(size)[:2] for each, size in zip(where, shape, strict=True)]
        if self.std is None:
            return np.full([stop - start for start, stop in bounds], self.value, np.float32)
        values = normal_values(name, shape, where, self.std, seed) + np.float32(self.value)
        for row in self.empty_rows:
            if bounds[0][0] <= row < bounds[0][1]:
                values[row - bounds[0][0]] = 0
        return values


def rules_of(inner: PreTrainedModel, numbers: Mapping[str, Tensor], init_std: float) -> dict[str, Rule]:
    """The rule of every parameter and buffer of a model on the meta device, by name.

    `numbers` are tensors that the family's code makes of numbers.
    """
    names = {id(tensor): name for name, tensor in [*inner.named_parameters(), *inner.named_buffers()]}
    rules: dict[str, Rule] = {}

    def remember(tensor: Tensor, rule: Rule) -> None:
        base = tensor._base
        if id(tensor) in names:
            rules[names[id(tensor)]] = rule
        elif base is not None and id(base) in names and rule == Rule() and tensor.ndim == base.ndim - 1:
            before = rules.get(names[id(base)], Rule(std=init_std))
            row = tensor.storage_offset() // math.prod(base.shape[1:])
            rules[names[id(base)]] = Rule(before.std, before.value, before.given, (*before.empty_rows, row))

    with _remembered(remember), torch.no_grad(), torch.device("cpu"):
        _visit(inner, inner)
    rules = {name: Rule(given=tensor) for name, tensor in numbers.items()} | rules
    unknown = [name for name, _ in inner.named_buffers() if name not in rules]
    if unknown:
        what = f"{unknown[0]} is a buffer whose values transformers does not say"
        raise ConfigError([Problem("model.family", f"{what}. Give a model of another family.")])
    for name, tensor in inner.named_parameters():
        if name not in rules:
            plain = Rule(value=0.0 if name.endswith("bias") else 1.0)
            rules[name] = plain if tensor.ndim < 2 else Rule(std=init_std)
    return rules


def _visit(owner: PreTrainedModel, module: nn.Module) -> None:
    """Modules inside first, each by the rule of the nearest model around it, as transformers does."""
    for child in module.children():
        _visit(child if isinstance(child, PreTrainedModel) else owner, child)
    owner._init_weights(module)  # type: ignore[no-untyped-call]


@contextmanager
def _remembered(remember: Callable[[Tensor, Rule], None]) -> Iterator[None]:
    """Inside, transformers' functions of first values change nothing."""

    def normal(tensor: Tensor, mean: float = 0.0, std: float = 1.0, *_: Any, **__: Any) -> Tensor:
        remember(tensor, Rule(std=float(std), value=float(mean)))
        return tensor

    def filled(value: float) -> Callable[..., Tensor]:
        def fill(tensor: Tensor) -> Tensor:
            remember(tensor, Rule(value=value))
            return tensor

        return fill

    def constant(tensor: Tensor, val: float) -> Tensor:
        remember(tensor, Rule(value=float(val)))
        return tensor

    def copied(tensor: Tensor, other: Tensor) -> Tensor:
        remember(tensor, Rule(unknown="copy_") if other.is_meta else Rule(given=other.detach().clone()))
        return tensor

    def unknown(name: str) -> Callable[..., Tensor]:
        def draw(tensor: Tensor, *_: Any, **__: Any) -> Tensor:
            remember(tensor, Rule(unknown=name))
            return tensor

        return draw

    known: dict[str, Callable[..., Tensor]] = {
        "normal_": normal,
        "trunc_normal_": normal,  # three or more deviations from the mean, where the two differ, are rare
        "zeros_": filled(0.0),
        "ones_": filled(1.0),
        "constant_": constant,
        "copy_": copied,
    }
    others = [name for name in initialization.TORCH_INIT_FUNCTIONS if name not in known]
    with ExitStack() as restored:
        for name, function in {**known, **{name: unknown(name) for name in others}}.items():
            restored.callback(setattr, initialization, name, getattr(initialization, name))
            setattr(initialization, name, function)
        yield

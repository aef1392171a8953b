"""Copies of the weights beside them, each rank's part on its device: an average that follows them, or the last few.

A copy takes the memory of the weights, 4 bytes a parameter of a rank's part. To follow costs one pass over two copies
an update. Whatever is done here is done to a rank's own parts: nothing crosses between ranks.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from trivium.engine.average import AverageSettings
from trivium.engine.torch.checkpoint.parts import SavedTensor
from trivium.engine.torch.checkpoint.state import read_into, under
from trivium.errors import ResumeError

AVERAGE = "average/"
Weights = Mapping[str, Tensor]


def copy_of(weights: Weights) -> dict[str, Tensor]:
    """The same values in memory of their own, laid out alike."""
    return {name: tensor.detach().clone() for name, tensor in weights.items()}


@torch.no_grad()
def follow(copy: Weights, weights: Weights, ema: float) -> None:
    """Move an average towards the weights, after an update."""
    torch._foreach_lerp_(_parts(copy), _parts(weights), 1 - ema)


@torch.no_grad()
def with_copy(copies: Sequence[dict[str, Tensor]], weights: Weights, last: int) -> list[dict[str, Tensor]]:
    """The last copies, of which the newest is of these weights; it takes the memory of one that is dropped."""
    kept = list(copies)
    if len(kept) < last:
        return [*kept, copy_of(weights)]
    oldest = kept.pop(0)
    torch._foreach_copy_(_parts(oldest), _parts(weights))
    return [*kept, oldest]


@torch.no_grad()
def fill_with_mean(weights: Weights, copies: Sequence[Weights], settings: AverageSettings) -> None:
    """Put the average in the place of the weights."""
    first, *others = settings.shares(len(copies))
    for name, tensor in weights.items():
        held, parts = _part(tensor), [_part(copy[name]) for copy in copies]
        torch.mul(parts[0], first, out=held)
        for part, share in zip(parts[1:], others, strict=True):
            held.add_(part, alpha=share)


@contextmanager
def swapped_in(weights: Weights, copies: Sequence[Weights], settings: AverageSettings) -> Iterator[None]:
    """Inside, the weights are the average; after it, what they were to the bit.

    One copy changes places with the weights, tensor by tensor; several are averaged beside a copy of the weights.
    """
    if len(copies) == 1:
        _exchange(weights, copies[0])
        try:
            yield
        finally:
            _exchange(weights, copies[0])
        return
    own = copy_of(weights)
    fill_with_mean(weights, copies, settings)
    try:
        yield
    finally:
        with torch.no_grad():
            torch._foreach_copy_(_parts(weights), _parts(own))


@torch.no_grad()
def _exchange(one: Weights, other: Weights) -> None:
    for name, tensor in one.items():
        mine, theirs = _part(tensor), _part(other[name])
        kept = mine.clone()
        mine.copy_(theirs)
        theirs.copy_(kept)


def saved_copies(copies: Sequence[Weights]) -> dict[str, Tensor]:
    """The copies under the names that a checkpoint has, the oldest first: `average/000/PARAMETER`."""
    return {name: tensor for number, copy in enumerate(copies) for name, tensor in under(_prefix(number), copy).items()}


def read_copies(folder: Path, saved: Mapping[str, SavedTensor], weights: Weights) -> list[dict[str, Tensor]]:
    """The copies that a checkpoint has, laid out as the weights are; none where it has none."""
    copies: list[dict[str, Tensor]] = []
    while (prefix := _prefix(len(copies))) + next(iter(weights)) in saved:
        copy = {name: torch.empty_like(tensor.detach()) for name, tensor in weights.items()}
        read_into(folder, saved, under(prefix, copy))
        copies.append(copy)
    return copies


def read_average(folder: Path, saved: Mapping[str, SavedTensor], weights: Weights, settings: AverageSettings) -> None:
    """Fill the weights with the average that a checkpoint has."""
    copies = read_copies(folder, saved, weights)
    refuse_none(folder, len(copies))
    fill_with_mean(weights, copies, settings)


def refuse_none(folder: Path, copies: int) -> None:
    """A checkpoint from before an average's first copy has none."""
    if not copies:
        raise ResumeError(f"{folder}: has no average. Take a later checkpoint, or the weights themselves.")


def _prefix(number: int) -> str:
    return f"{AVERAGE}{number:03}/"


def _parts(weights: Weights) -> list[Tensor]:
    return [_part(tensor) for tensor in weights.values()]


def _part(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor

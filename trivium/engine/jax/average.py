"""Copies of the parameters beside them, each part on its device: an average that follows them, or the last few.

The one that follows is part of the state of a compiled step. A copy takes the memory of the parameters.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
from jax import Array

from trivium.engine.average import AverageSettings
from trivium.engine.jax.loss import Number
from trivium.engine.jax.model import Params
from trivium.engine.jax.state import read_state, saved_shapes
from trivium.errors import ResumeError
from trivium.model.spec import ModelSpec


def copy_of(params: Params) -> Params:
    """The same values in buffers of their own: those of a state are donated to the next step."""
    return {name: jnp.copy(array) for name, array in params.items()}


def following(average: Params, params: Params, rate: Number) -> Params:
    """Inside of a compiled step: an average moved towards the parameters, after an update."""
    return {name: array + rate * (params[name] - array) for name, array in average.items()}


def mean_of(copies: Sequence[Params], settings: AverageSettings) -> Params:
    """The average, in buffers of its own."""
    if len(copies) == 1:
        return copy_of(copies[0])
    shares = settings.shares(len(copies))
    return {
        name: sum((share * copy[name] for share, copy in zip(shares[1:], copies[1:], strict=True)), shares[0] * first)
        for name, first in copies[0].items()
    }


def part_name(number: int) -> str:
    """A copy's part of a checkpoint, the oldest first."""
    return f"average-{number:03}"


def read_copies(
    folder: Path, target: Mapping[str, jax.ShapeDtypeStruct], saved: Mapping[str, object]
) -> list[dict[str, Array]]:
    """The copies that a checkpoint has; none where it has none."""
    copies: list[dict[str, Array]] = []
    while (part := part_name(len(copies))) in saved:
        copies.append(read_state(folder, {part: target})[part])
    return copies


def read_average(
    folder: Path, target: Mapping[str, jax.ShapeDtypeStruct], spec: ModelSpec, settings: AverageSettings
) -> Params:
    """The average that a checkpoint has; refuses one from before its first copy."""
    copies = read_copies(folder, target, saved_shapes(folder, spec))
    if not copies:
        raise ResumeError(f"{folder}: has no average. Take a later checkpoint, or the weights themselves.")
    return mean_of(copies, settings)

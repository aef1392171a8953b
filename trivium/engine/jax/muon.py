"""Muon for the layers' matrices, with the torch engine's momentum, coefficients and scale.

Matrices of one shape are stacked and made orthogonal together: the code that is compiled grows with the number of
shapes, not of layers.
"""

import math
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from trivium.engine.jax.kl import Number

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
STEPS = 5
EPS = 1e-7


class MuonState(NamedTuple):
    """The running mean of every matrix' gradient."""

    mean: dict[str, Array]


def muon_init(params: dict[str, Array]) -> MuonState:
    """Zeros, laid out as the parameters are."""
    return MuonState({name: jnp.zeros_like(matrix) for name, matrix in params.items()})


def muon_directions(
    gradients: dict[str, Array], state: MuonState, momentum: Number
) -> tuple[dict[str, Array], MuonState]:
    """What to subtract from every matrix, times the learning rate."""
    mean = {name: _lerp(state.mean[name], gradient, 1 - momentum) for name, gradient in gradients.items()}
    updates = {name: _lerp(gradient, mean[name], momentum) for name, gradient in gradients.items()}
    directions: dict[str, Array] = {}
    for shape in sorted({update.shape for update in updates.values()}):
        names = [name for name, update in updates.items() if update.shape == shape]
        stacked = orthogonal(jnp.stack([updates[name] for name in names]))
        scale = math.sqrt(max(1, shape[0] / shape[1]))
        directions |= {name: scale * stacked[index] for index, name in enumerate(names)}
    return directions, MuonState(mean)


def orthogonal(matrices: Array) -> Array:
    """The nearest matrices with equal singular values, roughly: a few Newton-Schulz steps bring them near 1."""
    a, b, c = COEFFICIENTS
    is_tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.mT if is_tall else matrices
    x = x / jnp.maximum(jnp.sqrt((x * x).sum(axis=(1, 2), keepdims=True)), EPS)

    def step(_: int, x: Array) -> Array:
        gram = x @ x.mT
        return a * x + (b * gram + c * (gram @ gram)) @ x

    x = jnp.asarray(lax.fori_loop(0, STEPS, step, x))
    return x.mT if is_tall else x


def _lerp(start: Array, end: Array, weight: Number) -> Array:
    return start + weight * (end - start)

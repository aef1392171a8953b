"""Gradients -> updates: AdamW or AdEMAMix for everything, Muon for the layers' matrices with AdamW, or anyone's.

Parameters fall into the plan's four groups by name, as in the torch engine, each with its own learning rate at every
step. Rates, momentum, decay and clipping are arguments of a compiled step. An optax transformation of an installed
package is made with a learning rate of 1, and its updates are multiplied by each group's. One of a Trainer's method has
its learning rates inside: the schedule multiplies its updates.

Muon has the torch engine's momentum, coefficients and scale. Matrices of one shape are stacked and made orthogonal
together: the code that is compiled grows with the number of shapes, not of layers.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array, lax

from trivium.engine.base import OptimizerSettings, OwnOptimizer, StepSettings
from trivium.engine.jax.loss import Number
from trivium.engine.jax.model import Params
from trivium.engine.packaged import is_packaged, packaged
from trivium.engine.parameters import parameter_group
from trivium.errors import UsageError

WRONG_KIND = (
    "{}, and the JAX engine takes an optax.GradientTransformation, or a function of the named parameters that makes "
    'one. Return that, or set engine.name = "torch".'
)
CLIP_EPS = 1e-6  # torch's own
MUON_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
MUON_STEPS = 5
MUON_EPS = 1e-7


class MuonState(NamedTuple):
    """The running mean of every matrix' gradient."""

    mean: dict[str, Array]


class StepRates(NamedTuple):
    """A step's settings as arguments of a compiled step, float32 each."""

    lr: Mapping[str, Number]  # by group
    lr_multiplier: Number
    momentum: Number
    weight_decay: Number
    loss_limit: Number
    norm_limit: Number
    grad_clip: Number  # infinite where gradients are not clipped
    alpha: Number  # AdEMAMix's
    slow_weight: Number  # 1 - beta3, which float32 would round away in beta3 itself

    @classmethod
    def of(cls, now: StepSettings, grad_clip: float | None = None) -> "StepRates":
        clip = math.inf if grad_clip is None else grad_clip
        limits = (now.loss_limit, now.norm_limit, clip)
        numbers = (now.lr_multiplier, now.momentum, now.weight_decay, *limits, now.alpha, 1 - now.beta3)
        return cls({group: np.float32(rate) for group, rate in now.lr.items()}, *map(np.float32, numbers))


class BuiltInState(NamedTuple):
    """AdamW's and Muon's, each of its own parameters, and AdEMAMix's slow averages beside AdamW's."""

    adam: optax.ScaleByAdamState
    muon: MuonState
    slow: dict[str, Array]


class Optimizer(Protocol):
    """Hashable, so that the same one is compiled once."""

    def init(self, params: Params) -> Any:
        """The state before the first update, laid out as the parameters are."""

    def update(self, gradients: Params, state: Any, params: Params, now: StepRates) -> tuple[Params, Any]:
        """New parameters, and the state after."""


@dataclass(frozen=True, slots=True)
class BuiltInOptimizer:
    """AdamW, AdEMAMix, or Muon with AdamW for what is not a layer's matrix."""

    settings: OptimizerSettings

    def init(self, params: Params) -> BuiltInState:
        by_adam, by_muon = self._apart(params)
        zeros = {name: jnp.zeros_like(matrix) for name, matrix in by_muon.items()}
        is_slow = self.settings.name == "ademamix"
        slow = {name: jnp.zeros_like(weight) for name, weight in params.items()} if is_slow else {}
        return BuiltInState(self._adam.init(by_adam), MuonState(zeros), slow)

    def update(
        self, gradients: Params, state: BuiltInState, params: Params, now: StepRates
    ) -> tuple[Params, BuiltInState]:
        """Every parameter moved along its direction."""
        by_adam, by_muon = self._apart(gradients)
        adam_directions, adam = self._adam.update(by_adam, state.adam)
        muon, muon_state = muon_directions(by_muon, state.muon, now.momentum)
        directions: Params = {**adam_directions, **muon}
        slow = {name: _lerp(average, gradients[name], now.slow_weight) for name, average in state.slow.items()}
        for name, average in slow.items():
            directions = {**directions, name: directions[name] + now.alpha * average / self._divisor(adam, name)}
        return moved(params, directions, self.settings, now), BuiltInState(adam, muon_state, slow)

    def _divisor(self, adam: optax.ScaleByAdamState, name: str) -> Array:
        """What Adam divides a parameter's average gradient by."""
        square = adam.nu[name] / (1 - self.settings.betas[1] ** adam.count)
        return jnp.sqrt(square) + self.settings.eps

    @property
    def _adam(self) -> optax.GradientTransformation:
        return optax.scale_by_adam(*self.settings.betas, self.settings.eps)

    def _apart(self, params: Params) -> tuple[Params, Params]:
        """What AdamW updates, and what Muon does."""
        is_muon = {
            name: self.settings.name == "muon" and parameter_group(name, (), array.ndim).name == "matrix"
            for name, array in params.items()
        }
        by_adam = {name: array for name, array in params.items() if not is_muon[name]}
        return by_adam, {name: array for name, array in params.items() if is_muon[name]}


def moved(params: Params, directions: Params, settings: OptimizerSettings, now: StepRates) -> Params:
    """Decay, then the step against each direction, at the group's learning rate."""
    updated = {}
    for name, weight in params.items():
        kind = parameter_group(name, settings.no_decay, weight.ndim)
        rate = now.lr[kind.name]
        kept = weight * (1 - rate * now.weight_decay) if kind.decays else weight
        updated[name] = kept - rate * directions[name]
    return updated


@dataclass(frozen=True, slots=True)
class PackagedOptimizer:
    """An optax transformation of an installed package, made with a learning rate of 1; decay is ours."""

    settings: OptimizerSettings

    def init(self, params: Params) -> Any:
        return self._made.init(params)

    def update(self, gradients: Params, state: Any, params: Params, now: StepRates) -> tuple[Params, Any]:
        """Its updates, at the group's learning rate."""
        updates, state = self._made.update(gradients, state, params)
        return moved(params, jax.tree.map(jnp.negative, updates), self.settings, now), state

    @property
    def _made(self) -> optax.GradientTransformation:
        name = self.settings.name
        try:
            made = packaged(name)(learning_rate=1.0, **dict(self.settings.options))
        except (TypeError, ValueError) as error:
            raise UsageError(f'optimizer.name = "{name}": {error}. Look at optimizer.options.') from error
        if not isinstance(made, optax.GradientTransformation):
            what = (
                f"makes a {type(made).__name__} of learning_rate = 1.0, and JAX takes an optax.GradientTransformation"
            )
            raise UsageError(f'optimizer.name = "{name}": {what}.')
        return made


@dataclass(frozen=True, slots=True, eq=False)
class OptaxOptimizer:
    """An optax transformation of the user's own, known by its identity."""

    transformation: optax.GradientTransformation

    def init(self, params: Params) -> Any:
        return self.transformation.init(params)

    def update(self, gradients: Params, state: Any, params: Params, now: StepRates) -> tuple[Params, Any]:
        """Its updates, times the schedule's multiplier."""
        updates, state = self.transformation.update(gradients, state, params)
        updates = jax.tree.map(lambda update: now.lr_multiplier * update, updates)
        updated: Params = optax.apply_updates(params, updates)
        return updated, state


def optimizer_of(settings: OptimizerSettings, own: OwnOptimizer | None, params: Params) -> Optimizer:
    """The settings', the user's own, or what the user's own function makes of named parameters."""
    if own is None:
        settings = replace(settings, grad_clip=None)  # which is an argument of a step
        return PackagedOptimizer(settings) if is_packaged(settings.name) else BuiltInOptimizer(settings)
    if isinstance(own.func if isinstance(own, partial) else own, type):
        raise UsageError(f"Trainer.optimizer() returned {WRONG_KIND.format('a class')}")
    made = own(list(params.items())) if callable(own) else own
    if not isinstance(made, optax.GradientTransformation):
        raise UsageError(f"Trainer.optimizer() returned {WRONG_KIND.format(f'what makes a {type(made).__name__}')}")
    return OptaxOptimizer(made)


def norm_of(gradients: Params) -> Array:
    return jnp.sqrt(sum((jnp.sum(gradient * gradient) for gradient in gradients.values()), jnp.zeros(())))


def clipped(gradients: Params, norm: Array, limit: Number) -> Params:
    """Scaled down to the limit where their norm is above it."""
    factor = jnp.minimum(1.0, limit / (norm + CLIP_EPS))
    return {name: gradient * factor for name, gradient in gradients.items()}


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
    a, b, c = MUON_COEFFICIENTS
    is_tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.mT if is_tall else matrices
    x = x / jnp.maximum(jnp.sqrt((x * x).sum(axis=(1, 2), keepdims=True)), MUON_EPS)

    def step(_: int, x: Array) -> Array:
        gram = x @ x.mT
        return a * x + (b * gram + c * (gram @ gram)) @ x

    x = jnp.asarray(lax.fori_loop(0, MUON_STEPS, step, x))
    return x.mT if is_tall else x


def _lerp(start: Array, end: Array, weight: Number) -> Array:
    return start + weight * (end - start)

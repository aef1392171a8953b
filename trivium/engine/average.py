"""Averages of a model's weights that are kept beside them: which one, and how much each copy counts.

    ema     one copy that follows the weights: after every update, average += (1 - ema) * (weights - average)
    last    the last k copies of the weights, taken at a regular distance; the average is their weighted mean

A weighted mean of checkpoints of a constant learning rate imitates a decay of that rate (arXiv 2507.17634): with copies
0 to k - 1, the oldest first, and a decay f from f(0) = 1 to f(1) = 0, copy j counts f(j / k) - f((j + 1) / k). The
updates between copies j - 1 and j then count f(j / k), as they would under the decay. A linear decay weighs all alike.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import cos, pi, sqrt
from typing import Literal

AverageWeights = Literal["uniform", "1-sqrt", "cosine", "sqrt"]
DECAYS: dict[AverageWeights, Callable[[float], float]] = {
    "uniform": lambda p: 1 - p,
    "1-sqrt": lambda p: 1 - sqrt(p),
    "cosine": lambda p: (1 + cos(pi * p)) / 2,
    "sqrt": lambda p: sqrt(1 - p),
}


@dataclass(frozen=True, slots=True)
class AverageSettings:
    """An average that is kept beside the weights: one of `ema` and `last`."""

    ema: float | None = None  # how much of the average stays at an update
    last: int | None = None  # how many copies are kept
    weights: AverageWeights = "uniform"

    def shares(self, copies: int) -> tuple[float, ...]:
        """How much each copy counts where there are this many, the oldest first; they add up to 1."""
        decay = DECAYS[self.weights]
        if self.weights == "uniform":
            return (1 / copies,) * copies
        return tuple(decay(number / copies) - decay((number + 1) / copies) for number in range(copies))

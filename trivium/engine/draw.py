"""A seed, a parameter's name and a part of it -> the part's first values; no framework.

Every element has a draw of its own, made of the seed, the parameter's name and the element's place in the whole
parameter. So a rank draws what it holds and nothing else, and the weights are the same bits on any layout, in either
engine. About 10 nanoseconds an element, and no memory beside the part.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trivium.engine.parameters import drawn_rows, init_std
from trivium.model.spec import XIELU_BETA, ModelSpec
from trivium.rows.kernels import compiled, formula
from trivium.rows.order import uniform
from trivium.seeds import derive_key

_HALF_WORD = np.uint64(32)
_STEP = 2.0**-32
_VECTORS = {"bias": 0.0, "alpha_p": math.log(math.expm1(0.8)), "alpha_n": math.log(math.expm1(0.8 - XIELU_BETA))}
_CENTRE = 0.425  # as far from a half as the first fraction serves


def first_values(
    name: str, shape: tuple[int, ...], where: tuple[slice, ...], spec: ModelSpec, seed: int
) -> NDArray[np.float32]:
    """Biases are zeros, norms ones; matrices normal, narrower where 2 * layers of them add up in the stream.

    xIELU's two numbers are those whose slopes are 0.8, as in the models that others publish.
    """
    bounds = [each.indices(size)[:2] for each, size in zip(where, shape, strict=True)]
    sizes = [stop - start for start, stop in bounds]
    if len(shape) < 2:
        return np.full(sizes, _VECTORS.get(name.rpartition(".")[2], 1), np.float32)
    values = np.zeros(sizes, np.float32)
    rows = max(0, min(bounds[0][1], drawn_rows(name, shape[0], spec)) - bounds[0][0])
    runs = _runs(shape, [(bounds[0][0], bounds[0][0] + rows), *bounds[1:]])
    _draw(values[:rows].reshape(len(runs), sizes[-1]), runs, np.uint64(init_key(name, seed)), init_std(name, spec))
    return values


def init_key(name: str, seed: int) -> int:
    """The key that a parameter's first values are drawn with."""
    return derive_key(seed, "init", name)


def _runs(shape: tuple[int, ...], bounds: list[tuple[int, int]]) -> NDArray[np.int64]:
    """The number in the whole parameter of the first element of every stretch of a part along the last dimension."""
    starts = np.array([bounds[-1][0]], np.int64)
    stride = shape[-1]
    for size, (start, stop) in zip(reversed(shape[:-1]), reversed(bounds[:-1]), strict=True):
        starts = (stride * np.arange(start, stop)[:, None] + starts).ravel()
        stride *= size
    return starts


@compiled
def _draw(values: NDArray[np.float32], runs: NDArray[np.int64], key: np.uint64, std: float) -> None:
    """Fill stretches whose first elements have these numbers."""
    for run in range(len(runs)):
        for place in range(values.shape[1]):
            word = uniform(key, runs[run] + place) >> _HALF_WORD
            values[run, place] = std * normal((np.float64(word) + 0.5) * _STEP)


@formula
def normal(share: Any) -> Any:
    """What this share of a standard normal distribution lies below: Wichura's AS 241, to seven digits.

    For shares from 1.4e-11 on, and as far from 1.
    """
    off = share - 0.5
    if abs(off) <= _CENTRE:
        r = 0.180625 - off * off
        above = ((59.109374720 * r + 159.29113202) * r + 50.434271938) * r + 3.3871327179
        below = ((67.187563600 * r + 78.757757664) * r + 17.895169469) * r + 1.0
        return off * above / below
    r = math.sqrt(-math.log(min(share, 1.0 - share))) - 1.6
    above = ((0.17023821103 * r + 1.3067284816) * r + 2.7568153900) * r + 1.4234372777
    below = (0.12021132975 * r + 0.73700164250) * r + 1.0
    return above / below if off > 0 else -above / below

"""Names and hashes of functions of one's own: the same in every launch, others when the function is another."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import optax
import pytest
import torch

from trivium.engine.own import name_of, source_hash

RATE = 0.5


def halve(step: Any) -> Any:
    return RATE * step


def twice(step: Any) -> Any:
    return halve(halve(step))


def scaled(factor: float) -> Callable[[int], float]:
    return lambda step: factor * step


class Model:
    """Uses `halve`."""

    def run(self) -> Any:
        return halve(3)


@dataclass
class Numbers:
    """A config of one's own."""

    width: int


class Tuned(Model):
    """Another model."""


def test_names_are_those_of_the_functions() -> None:
    assert name_of(halve) == name_of(partial(halve, 3)) == "halve"
    assert name_of(scaled(1.0)) == "scaled.<lambda>"
    assert name_of(torch.optim.SGD) == name_of(partial(torch.optim.SGD, lr=1.0)) == "SGD"
    assert name_of(optax.sgd(1.0)).startswith("GradientTransformation")


def test_the_same_function_has_the_same_hash() -> None:
    assert source_hash(scaled(0.5)) == source_hash(scaled(0.5))
    assert source_hash(optax.adam(1e-3)) == source_hash(optax.adam(1e-3))
    assert source_hash(partial(torch.optim.SGD, lr=0.1)) == source_hash(partial(torch.optim.SGD, lr=0.1))
    assert source_hash(partial(halve, np.arange(3))) == source_hash(partial(halve, np.arange(3)))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (halve, twice),
        (scaled(0.5), scaled(0.25)),
        (partial(halve, 3), partial(halve, 4)),
        (partial(halve, np.arange(3)), partial(halve, np.arange(4))),
        (partial(torch.optim.SGD, lr=0.1), partial(torch.optim.SGD, lr=0.2)),
        (optax.adam(1e-3), optax.adam(2e-3)),
        (optax.cosine_decay_schedule(1.0, 10), optax.cosine_decay_schedule(1.0, 11)),
        (Model, Tuned),
        (partial(halve, Numbers(3)), partial(halve, Numbers(4))),
    ],
)
def test_another_function_has_another_hash(one: Any, other: Any) -> None:
    assert source_hash(one) != source_hash(other)


@pytest.mark.parametrize("function", [halve, twice, Model, Tuned, Model().run], ids=name_of)
def test_what_a_function_names_counts(function: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    before = source_hash(function)
    monkeypatch.setitem(globals(), "RATE", 0.25)
    assert source_hash(function) != before

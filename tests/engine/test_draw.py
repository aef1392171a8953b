"""First values: a part of a parameter has the bits that the whole one has there, in the spread that is asked for."""

from dataclasses import replace
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.support.batches import TINY
from trivium.engine.draw import first_values, normal
from trivium.model.spec import ModelSpec

QUERY, OUTPUT = "layers.0.attention.query.weight", "layers.0.attention.output.weight"


def whole(name: str, shape: tuple[int, ...], spec: ModelSpec = TINY, seed: int = 1) -> NDArray[np.float32]:
    return first_values(name, shape, tuple(slice(0, size) for size in shape), spec, seed)


@given(st.data())
def test_a_part_has_the_bits_of_the_whole(data: Any) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=3)))
    bounds = [sorted(data.draw(st.tuples(*[st.integers(0, size)] * 2))) for size in shape]
    where = tuple(slice(*each) for each in bounds)
    name = data.draw(st.sampled_from([QUERY, "embedding.weight", "norm.weight", "norm.bias"]))
    spec = replace(TINY, vocab=4)
    assert np.array_equal(first_values(name, shape, where, spec, 1), whole(name, shape, spec)[where])


def test_the_first_draws_stay_what_they_are() -> None:
    assert whole(QUERY, (2, 2)).ravel().tolist() == pytest.approx(
        [-0.299530953168869, -0.32250067591667175, -0.1717364341020584, 0.12322536110877991], rel=1e-6
    )


def test_a_share_of_the_normal_distribution_is_found_to_seven_digits() -> None:
    shares = [2.0**-33, 1e-9, 1e-5, 0.0749, 0.0751, 0.3, 0.5, 0.7, 0.9249, 0.9251, 1 - 1e-9, 1 - 2.0**-33]
    assert [normal(share) for share in shares] == pytest.approx(
        [NormalDist().inv_cdf(share) for share in shares], rel=3e-7, abs=1e-9
    )


def test_weights_have_the_spread_that_was_asked_for() -> None:
    wide, narrow = (whole(name, (512, 512)) / TINY.init_std for name in (QUERY, OUTPUT))
    assert narrow.std() == pytest.approx(0.5, rel=0.01)  # two matrices in each of two layers
    assert [wide.mean(), wide.std(), (wide**3).mean(), (wide**4).mean()] == pytest.approx([0, 1, 0, 3], abs=0.03)
    neighbours = [(wide[:, 1:] * wide[:, :-1]).mean(), (wide[1:] * wide[:-1]).mean()]
    assert neighbours == pytest.approx([0, 0], abs=0.01)


def test_names_and_seeds_have_draws_of_their_own() -> None:
    first = whole(QUERY, (64, 64))
    for other in (whole("layers.1.attention.query.weight", (64, 64)), whole(QUERY, (64, 64), seed=2)):
        assert abs(np.corrcoef(first.ravel(), other.ravel())[0, 1]) < 0.06
        assert not np.intersect1d(first, other).size > 5


def test_the_padded_vocabulary_does_not_change_the_weights() -> None:
    small, large = whole("embedding.weight", (128, 32)), whole("embedding.weight", (256, 32))
    assert np.array_equal(small[: TINY.vocab], large[: TINY.vocab])
    assert not small[TINY.vocab :].any()
    assert not large[TINY.vocab :].any()


def test_biases_are_zeros_and_norms_ones() -> None:
    assert whole("layers.0.attention.query.bias", (3,)).tolist() == [0, 0, 0]
    assert whole("norm.weight", (3,)).tolist() == [1, 1, 1]

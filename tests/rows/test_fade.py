"""A fade gives each row to the old mixture or the new one, along its curve, also when it begins in the stage before."""

import math
from bisect import bisect_left
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.support.mixtures import BOUND, fade_lengths, mixtures, named, row_numbers, shares
from trivium.rows.fade import _SERIES, MAX_FADE_ROWS, SHAPES, Shape
from trivium.rows.mixture import Fade, FadeOut, Mixture, StageMixture

FADE_BOUND = 3 * BOUND + Fraction(1, 2)


def faded_in(num_rows: int, fade_rows: int, shape: str) -> float:
    """How many rows the new mixture should have given: the integral of its growing part."""
    if num_rows >= fade_rows:
        return num_rows - fade_rows / 2
    if shape == "linear":
        return num_rows * num_rows / (2 * fade_rows)
    if shape == "sigmoid":
        rise = math.log1p(math.exp(10 * (num_rows / fade_rows - 0.5))) - math.log1p(math.exp(-5))
        return fade_rows * rise / 10
    return num_rows / 2 - fade_rows / math.tau * math.sin(math.pi * num_rows / fade_rows)


def of_either(stage: StageMixture, mixture: Mixture) -> NDArray[np.float64]:
    """A mixture's shares, by the stage's index of sources."""
    given = dict(zip(mixture.names, mixture.shares, strict=True))
    return np.array([float(given.get(name, 0)) for name in stage.names])


@settings(deadline=None)
@given(mixtures, mixtures, row_numbers, fade_lengths, st.sampled_from(SHAPES), st.data())
def test_every_source_is_within_the_bound_in_and_after_a_fade(
    new: Mixture,
    old: Mixture,
    old_rows: int,
    fade_rows: int,
    shape: Shape,
    data: st.DataObject,
) -> None:
    stage = StageMixture(new, old, old_rows, Fade(fade_rows, shape=shape))
    num_rows = data.draw(st.integers(0, 2 * fade_rows))
    from_new = faded_in(num_rows, fade_rows, shape)
    expected = from_new * of_either(stage, new) + (num_rows - from_new) * of_either(stage, old)
    straight = 1e-7 * fade_rows if shape == "sigmoid" else 0.0  # between the places of its table
    assert np.abs(stage.count(num_rows) - expected).max() <= float(FADE_BOUND) + 1e-5 + straight


@pytest.mark.parametrize("shape", SHAPES)
def test_a_fade_grows_row_by_row_and_is_rounded_to_the_nearest(shape: Shape) -> None:
    web = Mixture.from_shares(shares(web="1"))
    for fade_rows in (*range(1, 60), 2000, 2001):
        stage = StageMixture(web, web, 0, Fade(fade_rows, shape=shape))
        grown = np.array([stage.new_rows(num_rows) for num_rows in range(fade_rows + 5)])
        assert grown[0] == 0
        assert set(np.diff(grown).tolist()) <= {0, 1}
        assert grown[fade_rows:].tolist() == [(fade_rows + 1) // 2 + more for more in range(5)]
        ideal = [faded_in(num_rows, fade_rows, shape) for num_rows in range(fade_rows + 5)]
        assert np.abs(grown - ideal).max() <= 0.5 + (1e-3 if shape == "sigmoid" else 1e-9)


@pytest.mark.parametrize("fade_rows", [MAX_FADE_ROWS, MAX_FADE_ROWS - 1, 10**6 + 1])
@pytest.mark.parametrize("shape", ["cosine", "sigmoid"])
def test_the_longest_curve_never_steps_back_nor_jumps_where_it_is_rounded(shape: Shape, fade_rows: int) -> None:
    web = Mixture.from_shares(shares(web="1"))
    stage = StageMixture(web, web, 0, Fade(fade_rows, shape=shape))
    assert stage.new_rows(fade_rows) == (fade_rows + 1) // 2
    # The flat ends are where an error could show: the new mixture's first rows, and the old one's last.
    for rows in (*range(1, 50), 10**3, 10**4):
        row = bisect_left(range(fade_rows // 2), rows, key=stage.new_rows)
        for middle in (row, fade_rows - row):
            grown = [stage.new_rows(near) for near in range(max(middle - 30, 0), middle + 30)]
            assert set(np.diff(grown).tolist()) <= {0, 1}
            ideal = faded_in(middle, fade_rows, shape)
            straight = 1e-7 * fade_rows if shape == "sigmoid" else 1e-5
            assert abs(stage.new_rows(middle) - ideal) <= 0.5 + straight


def test_the_series_of_the_cosine_is_what_its_comment_says() -> None:
    pi = Fraction("3.14159265358979323846264338327950288419716939937510582097494459")
    terms = [pi ** (2 * k) / (2 * math.factorial(2 * k + 1)) for k in range(1, _SERIES.size + 1)]
    assert _SERIES.tolist() == [math.floor(2**64 * term) for term in terms]


@pytest.mark.parametrize("shape", SHAPES)
def test_in_a_fade_the_old_mixture_continues_and_the_new_one_begins(shape: Shape) -> None:
    old = Mixture.from_shares(shares(web="0.8", code="0.2"))
    new = Mixture.from_shares(shares(chat="0.7", math="0.3"))
    faded = named(StageMixture(new, old, 1001, Fade(100, shape=shape)), 0, 300)
    from_old = [name for name in faded if name in old.names]
    from_new = [name for name in faded if name in new.names]
    assert from_old == named(StageMixture(old), 1001, 50)
    assert from_new == named(StageMixture(new), 0, 250)


def test_fades_follow_one_another_without_a_mixture_starting_over() -> None:
    first = Mixture.from_shares(shares(web="0.9", code="0.1"))
    second = Mixture.from_shares(shares(chat="0.35", math="0.65"))
    third = Mixture.from_shares(shares(books="1"))
    stage = StageMixture(second, first, 500, Fade(80))
    # Stopped after 60 rows of a fade of 80, when the second mixture has given 60 * 60 / 160 = 22.5 rows.
    assert stage.new_rows(60) == 23
    following = StageMixture(third, second, stage.new_rows(60), Fade(40))
    both = named(stage, 0, 60) + named(following, 0, 60)
    from_second = [name for name in both if name in second.names]
    assert from_second == named(StageMixture(second), 0, 23 + 20)


def test_a_fade_needs_something_to_fade_from_and_ends() -> None:
    web = Mixture.from_shares(shares(web="1"))
    with pytest.raises(ValueError, match=r"^fade: the first stage has no mixture to fade from\. Remove its fade\.$"):
        StageMixture(web, fade=Fade(10))
    with pytest.raises(ValueError, match=r"^fade: 2,147,483,648 rows is not within 0 to 2,147,483,647\. Shorten"):
        Fade(2**31)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_centred_fade_is_one_curve_over_two_stages(shape: Shape) -> None:
    old = Mixture.from_shares(shares(web="0.8", code="0.2"))
    new = Mixture.from_shares(shares(chat="0.7", math="0.3"))
    fade = Fade(100, 50, shape)
    first = StageMixture(old, out=FadeOut(new, 150, fade))
    second = StageMixture(new, old, first.new_rows(200), fade, first.next_rows(200))
    rows = named(first, 0, 200) + named(second, 0, 200)
    is_new = np.array([name in new.names for name in rows])
    ideal = [faded_in(max(0, num_rows - 150), 100, shape) for num_rows in range(401)]
    assert np.abs(np.concatenate(([0], np.cumsum(is_new))) - ideal).max() <= 1 + 1e-3
    # Both mixtures go on across the boundary, as if there were none.
    assert [name for name in rows if name in old.names] == named(StageMixture(old), 0, 200)
    assert [name for name in rows if name in new.names] == named(StageMixture(new), 0, 200)


def test_a_stage_between_two_centred_fades_reads_three_mixtures() -> None:
    first, second, third = (Mixture.from_shares({name: Fraction(1)}) for name in ("web", "code", "math"))
    stage = StageMixture(second, first, 90, Fade(20, 10), 3, FadeOut(third, 40, Fade(20, 10)))
    rows = named(stage, 0, 50)
    assert set(rows[:10]) == {"web", "code"}
    assert set(rows[10:40]) == {"code"}
    assert set(rows[40:]) == {"code", "math"}
    assert stage.new_rows(50) == 3 + rows.count("code")
    assert stage.next_rows(50) == rows.count("math")


@pytest.mark.parametrize("steepness", [0.5, 10, 40, 1000])
def test_a_sigmoid_has_the_parts_that_its_formula_gives(steepness: float) -> None:
    web = Mixture.from_shares(shares(web="1"))
    stage = StageMixture(web, web, 0, Fade(100_000, 0, "sigmoid", steepness))
    for part in (0.0, 0.2, 0.4, 0.5, 0.55, 0.9):
        row = round(part * 100_000)
        slope = (stage.new_rows(row + 1000) - stage.new_rows(row)) / 1000
        exponent = -steepness * ((row + 500) / 100_000 - 0.5)
        assert slope == pytest.approx(1 / (1 + math.exp(min(700, exponent))), abs=0.01 + steepness / 4e3)


def test_a_sigmoid_of_no_steepness_is_refused() -> None:
    web = Mixture.from_shares(shares(web="1"))
    with pytest.raises(ValueError, match=r"^fade: a steepness of 0 is not within 0 to 1000\. Write 10\.$"):
        StageMixture(web, web, 0, Fade(10, 0, "sigmoid", 0))


def test_a_source_that_fades_out_is_reached_within_the_fade_or_never() -> None:
    old, new = Mixture.from_shares(shares(web="1")), Mixture.from_shares(shares(code="1", chat="0"))
    stage = StageMixture(new, old, 0, Fade(100))
    assert stage.first_row_reaching("web", 50) == 91  # 91 * 91 / 200 = 41.4 of the first 91 rows are code
    assert stage.first_row_reaching("web", 51) is None
    assert stage.first_row_reaching("code", 10**9) == 10**9 + 50
    assert stage.first_row_reaching("chat", 1) is None
    assert stage.first_row_reaching("chat", 0) == 0

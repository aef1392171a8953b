"""Every source gives its share after any number of rows, in and after fades, from wherever one starts."""

import math
from bisect import bisect_left
from collections.abc import Mapping
from fractions import Fraction
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from trivium.rows.fade import _SERIES, MAX_FADE_ROWS, SHAPES, Shape
from trivium.rows.kernels import kernel_of
from trivium.rows.mixture import (
    FEW_SOURCES,
    MAX_ROWS,
    Fade,
    FadeOut,
    Mixture,
    StageMixture,
    _count,
    normalised,
    tempered,
)

BOUND = Fraction(168, 100)
FADE_BOUND = 3 * BOUND + Fraction(1, 2)

names = st.sampled_from(["books", "chat", "code", "math", "papers", "web", "wiki"])
weights = (st.integers(0, 10) | st.integers(0, 10**9)).map(Fraction)
some_weights = st.dictionaries(names, weights, min_size=1).filter(lambda given: any(given.values()))
shares_of_some = some_weights.map(normalised)
mixtures = shares_of_some.map(Mixture.from_shares)
row_numbers = st.integers(0, 2000) | st.integers(0, 2**50)
fade_lengths = st.integers(1, 300) | st.integers(1, MAX_FADE_ROWS)


@st.composite
def stages(draw: st.DrawFn) -> StageMixture:
    """Stages with a fade from another mixture, into the next one's, with both, and without; centred or not."""
    new = draw(mixtures)
    out = None
    fade_end = 0
    fade = None
    if draw(st.booleans()):
        half, center = draw(fade_lengths) // 2, draw(st.booleans())
        fade = Fade(2 * half, half if center else 0, draw(st.sampled_from(SHAPES)))
        fade_end = fade.rows - fade.before
    if draw(st.booleans()):
        half = draw(fade_lengths) // 2
        first = fade_end + draw(row_numbers)
        out = FadeOut(draw(mixtures), first, Fade(2 * half, half, draw(st.sampled_from(SHAPES))))
    if fade is None:
        return StageMixture(new, out=out)
    given = draw(row_numbers) if fade.before else 0
    return StageMixture(new, draw(mixtures), draw(row_numbers), fade, given, out)


def shares(**decimals: str) -> dict[str, Fraction]:
    return {name: Fraction(decimal) for name, decimal in decimals.items()}


def named(stage: StageMixture, first: int, count: int) -> list[str]:
    return [stage.names[source] for source in stage.deal(first, count)[0]]


def furthest(mixture: Mixture, num_rows: int) -> Fraction:
    """How far the source that is furthest from its share is from it, in rows."""
    counts = mixture.count(num_rows).tolist()
    assert sum(counts) == num_rows
    due = [num_rows * share for share in mixture.shares]
    return Fraction(max(abs(count - share) for count, share in zip(counts, due, strict=True)))


def test_rows_come_in_shares_as_even_as_can_be() -> None:
    stage = StageMixture(Mixture.from_shares(shares(web="0.7", code="0.2", chat="0.1")))
    assert stage.names == ("chat", "code", "web")
    sources, source_rows = stage.deal(0, 10)
    assert sources.tolist() == [2, 1, 2, 2, 0, 2, 2, 2, 1, 2]
    assert source_rows.tolist() == [0, 0, 1, 2, 0, 3, 4, 5, 1, 6]


def test_what_was_dealt_never_changes_by_accident() -> None:
    # A run that resumes under a newer version must read what it would have read.
    old = Mixture.from_shares(shares(web="0.8", code="0.2"))
    new = Mixture.from_shares(shares(web="0.3", chat="0.6999", math="0.0001"))
    golden = {
        "linear": "eoeeeheoeeeehehoeehhehehehehhehhhehhehhe",
        "cosine": "eoeeeeoeheeeeoheheehhehehhehhehhhehhehhe",
        "sigmoid": "eoeeeeoeeeheoeeheheehhhehhehhehhhehhehhe",
    }
    for shape in SHAPES:
        stage = StageMixture(new, old, 1001, Fade(30, shape=shape))
        second_letters = [name[1] for name in named(stage, 0, 40)]
        assert "".join(second_letters) == golden[shape]


def descend(mixture: Mixture, row: int) -> tuple[int, int]:
    """The source of a mixture's nth row, and how many rows of it came before: one path, root to source."""
    node, seen = 0, row
    while node >= 0:
        p, q, left, right = (int(value) for value in mixture.nodes[node])
        to_left = [(2 * rows * p + q) // (2 * q) for rows in (seen, seen + 1)]
        if to_left[1] > to_left[0]:
            node, seen = left, to_left[0]
        else:
            node, seen = right, seen - to_left[0]
    return ~node, seen


@settings(deadline=None)  # the first call compiles
@given(stages(), row_numbers, st.integers(1, 300))
def test_counting_descending_and_dealing_agree(stage: StageMixture, first: int, count: int) -> None:
    sources, source_rows = stage.deal(first, count)
    before, after = stage.count(first), stage.count(first + count)
    assert before.sum() == first
    assert np.array_equal(before + np.bincount(sources, minlength=len(stage.names)), after)
    for place in {0, count // 2, count - 1}:
        row = first + place
        counts = stage.count(row), stage.count(row + 1)
        assert (counts[1] - counts[0])[sources[place]] == 1
        assert counts[0][sources[place]] == source_rows[place]
        if stage.old is None and stage.out is None:
            assert descend(stage.new, row) == (sources[place], source_rows[place])


@given(stages(), row_numbers | st.integers(0, MAX_ROWS))
def test_many_sources_are_counted_by_a_kernel_as_few_are_by_python(stage: StageMixture, num_rows: int) -> None:
    assert len(stage.names) <= FEW_SOURCES
    assert stage.count(num_rows).tolist() == kernel_of(_count)(*stage._trees, num_rows).tolist()


def test_many_sources_are_counted() -> None:
    stage = StageMixture(Mixture.from_shares({f"{n:03d}": Fraction(1, 100) for n in range(100)}))
    assert len(stage.names) > FEW_SOURCES
    assert stage.count(1000).tolist() == [10] * 100


@settings(deadline=None)
@given(stages(), row_numbers, st.integers(1, 300))
def test_rows_of_each_source_follow_one_another(stage: StageMixture, first: int, count: int) -> None:
    sources, source_rows = stage.deal(first, count)
    before = stage.count(first)
    for source in range(len(stage.names)):
        rows = source_rows[sources == source]
        assert np.array_equal(rows, before[source] + np.arange(rows.size))


@settings(deadline=None)
@given(stages(), row_numbers, st.integers(1, 100), st.integers(1, 100))
def test_rows_are_the_same_from_wherever_one_starts(stage: StageMixture, first: int, skip: int, more: int) -> None:
    sources, source_rows = stage.deal(first, skip + more)
    sources_later, source_rows_later = stage.deal(first + skip, more)
    assert np.array_equal(sources[skip:], sources_later)
    assert np.array_equal(source_rows[skip:], source_rows_later)


@settings(deadline=None)
@given(shares_of_some, row_numbers)
def test_every_source_is_within_the_bound_after_any_number_of_rows(
    asked: Mapping[str, Fraction], num_rows: int
) -> None:
    mixture = Mixture.from_shares(asked)
    assert furthest(mixture, num_rows) <= BOUND
    for name, share in zip(mixture.names, mixture.shares, strict=True):
        assert abs(share - asked[name]) <= asked[name] / 10**9


FIBONACCI = [1, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233, 377, 610, 987]


@pytest.mark.parametrize(
    "asked",
    [
        {"big": Fraction(999, 1000), **{f"small{i}": Fraction(1, 50_000) for i in range(50)}},
        {"big": Fraction(1, 1000), **{f"even{i}": Fraction(1, 1000) for i in range(999)}},
        normalised({f"rising{i}": Fraction(i + 1) for i in range(1000)}),
        tempered(normalised({f"rising{i}": Fraction(i + 1) for i in range(1000)}), 3.3),
        normalised({f"halved{i}": Fraction(1, 2**i) for i in range(100)}),
        normalised({f"fibonacci{i}": Fraction(n) for i, n in enumerate(FIBONACCI)}),
    ],
    ids=["one big", "a thousand even", "a thousand rising", "tempered", "halved", "fibonacci"],
)
def test_lopsided_and_many_sources_are_within_the_bound(asked: dict[str, Fraction]) -> None:
    mixture = Mixture.from_shares(asked)
    shares_given = np.array([float(share) for share in mixture.shares])
    for num_rows in range(2000):
        assert np.abs(mixture.count(num_rows) - num_rows * shares_given).max() <= float(BOUND) + 1e-9
    for num_rows in (10**6 + 1, 10**9 + 7, 10**12 + 39, MAX_ROWS):
        assert furthest(mixture, num_rows) <= BOUND


@pytest.mark.parametrize("tiny", ["0.000001", "0.000000001"])
def test_a_tiny_share_is_honoured(tiny: str) -> None:
    share = Fraction(tiny)
    mixture = Mixture.from_shares({"web": 1 - share - Fraction(1, 5), "code": Fraction(1, 5), "rare": share})
    rare = mixture.names.index("rare")
    assert mixture.shares[rare] == share
    assert mixture.count(share.denominator)[rare] == 1
    assert mixture.count(1000 * share.denominator)[rare] == 1000


def test_a_share_that_no_split_can_hold_is_refused() -> None:
    message = (
        r"^rare: a share of 1e-10 is too small beside the others: a split of two shares goes down to "
        r"1 in 2\*\*31\. Write 0 or a larger share\.$"
    )
    with pytest.raises(ValueError, match=message):
        Mixture.from_shares({"web": 1 - Fraction(1, 10**10), "rare": Fraction(1, 10**10)})


def test_shares_that_are_none_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^mixture: shares add up to 9/10, not to 1\. Write shares that do\.$"):
        Mixture.from_shares(shares(web="0.8", code="0.1"))
    with pytest.raises(ValueError, match=r"^code: a share of -1/10 is negative\. Write 0 or more\.$"):
        Mixture.from_shares(shares(web="1.1", code="-0.1"))
    with pytest.raises(ValueError, match=r"^mixture: shares add up to 0, not to 1\. Write shares that do\.$"):
        Mixture.from_shares({})


@settings(deadline=None)
@given(shares_of_some, st.randoms(use_true_random=False))
def test_the_order_in_which_sources_are_named_changes_nothing(asked: dict[str, Fraction], random: Random) -> None:
    shuffled = list(asked.items())
    random.shuffle(shuffled)
    straight, turned = Mixture.from_shares(asked), Mixture.from_shares(dict(shuffled))
    assert straight == turned
    assert np.array_equal(straight.nodes, turned.nodes)


@settings(deadline=None)
@given(shares_of_some, row_numbers)
def test_a_source_without_a_share_gives_nothing_and_changes_nothing(asked: dict[str, Fraction], first: int) -> None:
    more = {"aaa": Fraction(0), **asked, "zzz": Fraction(0)}
    with_more, without = StageMixture(Mixture.from_shares(more)), StageMixture(Mixture.from_shares(asked))
    assert named(with_more, first, 100) == named(without, first, 100)
    assert with_more.count(MAX_ROWS)[0] == 0


def test_a_single_source_gives_every_row() -> None:
    stage = StageMixture(Mixture.from_shares({"web": Fraction(1), "code": Fraction(0)}))
    assert named(stage, 10**12, 3) == ["web"] * 3
    assert stage.deal(10**12, 3)[1].tolist() == [10**12, 10**12 + 1, 10**12 + 2]


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


@settings(deadline=None)
@given(stages(), st.integers(0, 10**6))
def test_the_first_row_that_reaches_a_count_is_found(stage: StageMixture, rows: int) -> None:
    for index, name in enumerate(stage.names):
        num_rows = stage.first_row_reaching(name, rows)
        if num_rows is None:
            assert stage.count(MAX_ROWS)[index] < rows
        else:
            assert stage.count(num_rows)[index] == rows
            assert num_rows == 0 or stage.count(num_rows - 1)[index] == rows - 1


def test_a_source_that_fades_out_is_reached_within_the_fade_or_never() -> None:
    old, new = Mixture.from_shares(shares(web="1")), Mixture.from_shares(shares(code="1", chat="0"))
    stage = StageMixture(new, old, 0, Fade(100))
    assert stage.first_row_reaching("web", 50) == 91  # 91 * 91 / 200 = 41.4 of the first 91 rows are code
    assert stage.first_row_reaching("web", 51) is None
    assert stage.first_row_reaching("code", 10**9) == 10**9 + 50
    assert stage.first_row_reaching("chat", 1) is None
    assert stage.first_row_reaching("chat", 0) == 0


temperatures = st.floats(0.5, 1e6) | st.just(1.0) | st.just(math.inf)


@given(shares_of_some, temperatures)
def test_zero_stays_zero_at_every_temperature(asked: dict[str, Fraction], temperature: float) -> None:
    heated = tempered(asked, temperature)
    assert sum(heated.values()) == 1
    assert {name for name, share in heated.items() if share} == {name for name, share in asked.items() if share}


@given(shares_of_some, temperatures)
def test_temperature_keeps_the_order_of_shares_and_is_the_power_of_its_inverse(
    asked: dict[str, Fraction], temperature: float
) -> None:
    heated = tempered(asked, temperature)
    powers = {name: float(share) ** (1 / temperature) if share else 0.0 for name, share in asked.items()}
    for name, share in heated.items():
        assert math.isclose(share, powers[name] / sum(powers.values()), rel_tol=1e-9)
    ranked = sorted(asked, key=lambda name: asked[name])
    assert [heated[name] for name in ranked] == sorted(heated.values())


def test_temperature_by_example() -> None:
    asked = shares(web="0.8", code="0.2", math="0")
    assert tempered(asked, 1.0) == asked
    assert tempered(asked, math.inf) == shares(web="0.5", code="0.5", math="0")
    halves = tempered(asked, 2.0)  # the square root: 2 to 1
    assert abs(halves["web"] - Fraction(2, 3)) < Fraction(1, 10**45)
    assert Mixture.from_shares(halves).shares == (Fraction(1, 3), Fraction(0), Fraction(2, 3))
    squares = tempered(asked, 0.5)
    assert abs(squares["web"] - Fraction(16, 17)) < Fraction(1, 10**45)


@pytest.mark.parametrize("temperature", [0.0, -1.0, math.nan])
def test_a_temperature_that_is_not_above_zero_is_refused(temperature: float) -> None:
    with pytest.raises(ValueError, match=r"is not above 0\. Write 1 to leave shares as they are\.$"):
        tempered(shares(web="1"), temperature)


def test_a_temperature_at_which_a_share_vanishes_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^temperature: 1e-05 leaves nothing of code\. Write a higher one\.$"):
        tempered(shares(web="0.8", code="0.2"), 1e-5)


def test_weights_become_shares() -> None:
    relative = {"web": Fraction(3), "code": Fraction(1), "math": Fraction(0)}
    assert normalised(relative) == shares(web="0.75", code="0.25", math="0")
    with pytest.raises(ValueError, match=r"^mixture: no weight is above 0"):
        normalised({"web": Fraction(0)})
    with pytest.raises(ValueError, match=r"^web: a weight of -1 is negative\. Write 0 or more\.$"):
        normalised({"web": Fraction(-1)})

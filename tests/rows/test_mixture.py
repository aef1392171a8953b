"""Every source gives its share after any number of rows, in and after fades, from wherever one starts."""

import math
from collections.abc import Mapping
from fractions import Fraction
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.mixtures import BOUND, named, row_numbers, shares, shares_of_some, stages
from trivium.rows.fade import SHAPES
from trivium.rows.kernels import kernel_of
from trivium.rows.mixture import FEW_SOURCES, MAX_ROWS, Fade, Mixture, StageMixture, _count, normalised, tempered


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

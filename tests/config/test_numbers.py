"""Numbers as people write them, and as they are shown."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trivium.config.numbers import SUFFIXES, parse_count, show_count


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("7", 7),
        ("1_000", 1_000),
        ("4k", 4_000),
        ("200M", 200_000_000),
        ("2B", 2_000_000_000),
        ("1.5B", 1_500_000_000),
        ("0.1T", 100_000_000_000),
        ("1.1k", 1_100),
        ("4Ki", 4_096),
        ("1.5Ki", 1_536),
        ("512Ki", 524_288),
        ("1Mi", 1_048_576),
        ("2Gi", 2_147_483_648),
        ("1Ti", 1_099_511_627_776),
        (" 4 Ki ", 4_096),
        ("123456789012345678.9k", 123_456_789_012_345_678_900),
    ],
)
def test_an_ending_multiplies_exactly(text: str, count: int) -> None:
    assert parse_count(text) == count


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "is not a number"),
        ("ten", "is not a number"),
        ("-4k", "is not a number"),
        ("1e9", "is not a number"),
        (".5k", "is not a number"),
        ("1.5", "is not a whole number"),
        ("0.0001k", "is not a whole number"),
        ("4K", 'has the unknown ending "K" (known: k, M, B, T, Ki, Mi, Gi, Ti)'),
        ("4G", 'has the unknown ending "G" (known: k, M, B, T, Ki, Mi, Gi, Ti)'),
        ("4m", 'has the unknown ending "m" (known: k, M, B, T, Ki, Mi, Gi, Ti)'),
    ],
)
def test_what_is_no_count_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(reason)}$"):
        parse_count(text)


@given(st.integers(0, 10**18), st.sampled_from(sorted(SUFFIXES)))
def test_a_whole_number_with_an_ending_is_their_product(number: int, suffix: str) -> None:
    assert parse_count(f"{number}{suffix}") == parse_count(f"{number:_}{suffix}") == number * SUFFIXES[suffix]


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        (0, "0"),
        (9_999, "9,999"),
        (2.5, "2.5"),
        (10_000, "10k"),
        (20_480, "20.5k"),
        (999_499, "999k"),
        (999_500, "1M"),
        (2_000_158_720, "2B"),
        (1_500_000_000, "1.5B"),
        (14_800_000_000_000, "14.8T"),
        (1_234_000_000_000_000, "1,234T"),
    ],
)
def test_a_count_is_shown_in_a_few_digits(count: float, shown: str) -> None:
    assert show_count(count) == shown


@given(st.integers(1, 10**14))
def test_what_is_shown_reads_back_as_nearly_the_same(count: int) -> None:
    shown = show_count(count).replace(",", "")
    assert parse_count(shown) == pytest.approx(count, rel=0.005)

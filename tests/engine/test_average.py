"""How much each copy of an average counts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trivium.engine.average import DECAYS, AverageSettings, AverageWeights

WEIGHTS = st.sampled_from(sorted(DECAYS))


@given(weights=WEIGHTS, copies=st.integers(1, 200))
def test_shares_add_up_to_one_and_none_is_negative(weights: AverageWeights, copies: int) -> None:
    shares = AverageSettings(last=copies, weights=weights).shares(copies)
    assert len(shares) == copies
    assert sum(shares) == pytest.approx(1)
    assert min(shares) >= 0


@given(weights=WEIGHTS, copies=st.integers(2, 50))
def test_what_was_learnt_between_copies_counts_as_under_the_decay(weights: AverageWeights, copies: int) -> None:
    shares = AverageSettings(last=copies, weights=weights).shares(copies)
    for number in range(1, copies):  # between copies number - 1 and number: all copies from `number` on have it
        assert sum(shares[number:]) == pytest.approx(DECAYS[weights](number / copies))


def test_the_oldest_copy_counts_most_under_one_minus_sqrt() -> None:
    assert AverageSettings(last=4, weights="1-sqrt").shares(4) == pytest.approx((0.5, 0.2071, 0.1589, 0.1340), abs=1e-4)
    assert AverageSettings(last=4).shares(4) == (0.25,) * 4

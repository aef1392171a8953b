"""Which average each stage keeps, and after which steps the weights are copied for it."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from trivium.config.stages import Average, CopyEvery, Stage
from trivium.plan.average import StageAverage, stage_averages

EMA, LAST = Average(ema=0.9), Average(last=3, every=CopyEvery(steps=2))


def kept_by(*stages: dict[str, Any]) -> list[tuple[Average, bool] | None]:
    found = stage_averages([Stage(**each) for each in stages])
    return [None if each is None else (each.config, each.begins) for each in found]


def test_a_stage_that_says_nothing_goes_on_with_the_average_of_the_stage_before() -> None:
    assert kept_by({}, {"average": EMA}, {}, {"average": EMA}) == [None, (EMA, True), (EMA, False), (EMA, False)]


def test_another_average_begins_and_one_that_ends_begins_again() -> None:
    assert kept_by({"average": EMA}, {"average": LAST}, {"end_average": True}, {"average": LAST}) == [
        (EMA, True),
        (LAST, True),
        None,
        (LAST, True),
    ]


@given(
    every=st.one_of(st.builds(CopyEvery, steps=st.integers(1, 20)), st.builds(CopyEvery, tokens=st.integers(64, 2000))),
    start=st.integers(0, 50),
    steps=st.integers(0, 60),
    tokens_before=st.integers(0, 10_000),
)
def test_copies_of_a_span_are_those_of_its_steps(every: CopyEvery, start: int, steps: int, tokens_before: int) -> None:
    kept = StageAverage(Average(last=3, every=every), begins=True)
    each = [
        kept.copies_at(start + number, tokens_before + 64 * number, tokens_before + 64 * (number + 1))
        for number in range(steps)
    ]
    assert sum(each) == kept.copies_between(start, start + steps, tokens_before, tokens_before + 64 * steps)


def test_an_average_is_shown_in_words() -> None:
    assert StageAverage(EMA, begins=True).shown == "ema 0.9"
    assert StageAverage(LAST, begins=True).shown == "last 3, every 2 steps"
    tokens = Average(last=12, every=CopyEvery(tokens=5 * 10**9), weights="1-sqrt")
    assert StageAverage(tokens, begins=True).shown == "last 12, every 5B tokens, 1-sqrt"

"""Rows before a step, the step of a row and the sizes of a ramp, against a plain loop over the steps."""

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trivium.config.batches import Batches
from trivium.config.stages import Stage

STEPS = 60


def plain_ramp(first: int, by: int, increments: int, over: int, seq_len: int, steps: int) -> list[int]:
    """Rows of each step: the increments whose part of the tokens has been read before it, counted one by one."""
    sizes: list[int] = []
    for _ in range(steps):
        tokens = sum(sizes) * seq_len
        passed = [number for number in range(1, increments + 1) if tokens * increments >= number * over]
        sizes.append(first + by * len(passed))
    return sizes


@st.composite
def ramps(draw: st.DrawFn) -> tuple[Batches, list[int]]:
    """A ramp, and its sizes by a plain loop; then changed at random steps, as a run's owner may."""
    first, by, increments = draw(st.integers(1, 6)), draw(st.integers(1, 4)), draw(st.integers(1, 8))
    over, seq_len = draw(st.integers(1, 900)), draw(st.integers(1, 9))
    batches = Batches.ramp(first, first + by * increments, by, over, seq_len)
    sizes = plain_ramp(first, by, increments, over, seq_len, STEPS)
    for step in sorted(draw(st.lists(st.integers(0, STEPS - 1), max_size=3))):
        size = draw(st.integers(1, 9))
        batches, sizes = batches.changed(step, size), sizes[:step] + [size] * (STEPS - step)
    return batches, sizes


@given(ramps())
def test_sizes_and_rows_before_a_step_are_those_of_a_plain_loop(drawn: tuple[Batches, list[int]]) -> None:
    batches, sizes = drawn
    assert [batches.size_at(step) for step in range(STEPS)] == sizes
    assert [batches.rows_before(step) for step in range(STEPS + 1)] == [0, *accumulate(sizes)]


@given(ramps())
def test_every_row_has_the_step_and_place_that_counting_gives_it(drawn: tuple[Batches, list[int]]) -> None:
    batches, sizes = drawn
    places = [(step, row) for step, size in enumerate(sizes) for row in range(size)]
    assert [batches.place_of(row) for row in range(len(places))] == places
    assert [batches.steps_for(rows) for rows in range(len(places) + 1)] == [0, *(step + 1 for step, _ in places)]


@given(ramps(), st.integers(0, STEPS - 1))
def test_neighbouring_steps_of_one_size_are_one_piece(drawn: tuple[Batches, list[int]], step: int) -> None:
    batches, sizes = drawn
    later = [other for other in range(step + 1, STEPS) if sizes[other] != sizes[step]]
    end = batches.end_of_size(step)
    assert (later[0] if later else STEPS) == min(STEPS, STEPS if end is None else end)
    changes = [number for number in range(1, STEPS) if sizes[number] != sizes[number - 1]]
    assert [piece.step for piece in batches.until(STEPS)] == [0, *changes]
    assert [(piece.step, piece.size) for piece in batches.since(step) if piece.step < STEPS] == [
        (number, sizes[number]) for number in [step, *(number for number in changes if number > step)]
    ]


def test_a_published_ramp_goes_up_in_48_increments_over_its_tokens() -> None:
    ramp = {"from": 3072, "to": 15360, "over": "469B", "by": 256}
    stage = Stage.model_validate({"name": "pretrain", "seq_len": 4096, "batch_size": ramp})
    batches = stage.batches
    assert [piece.size for piece in batches.pieces] == list(range(3072, 15361, 256))
    for number, piece in enumerate(batches.pieces):
        due = number * 469 * 10**9 / 48
        assert due <= piece.row * 4096 < due + (piece.size - 256) * 4096 + (number == 0)
    in_tokens = {key: value * 4096 if key != "over" else value for key, value in ramp.items()}  # type: ignore[operator]
    other = Stage.model_validate({"name": "pretrain", "seq_len": 4096, "batch_tokens": in_tokens})
    assert other.batches == batches


@pytest.mark.parametrize("written", [256, {"from": 2, "to": 4, "over": 100, "by": 2}], ids=["one number", "a ramp"])
def test_a_batch_size_is_written_out_as_it_was_read(written: object) -> None:
    stage = Stage.model_validate({"name": "one", "batch_size": written, "tokens": {"per_parameter": 20.0}})
    out = stage.model_dump(mode="json", exclude_unset=True)
    assert out == {"name": "one", "batch_size": written, "tokens": {"per_parameter": 20.0}}
    assert Stage.model_validate(out) == stage

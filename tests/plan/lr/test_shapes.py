"""Shapes of the learning rate, each against its formula written out plainly."""

import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.plans import multipliers, plan_of

STEPS = 40


def run_of(**schedule: Any) -> list[float]:
    """The multipliers of a run of 40 steps in one stage."""
    return multipliers(plan_of({"steps": STEPS}, schedule=schedule))


FORMS: dict[str, tuple[dict[str, Any], Callable[[float], float]]] = {
    "1-sqrt": ({}, lambda part: 1 - math.sqrt(part)),
    "sqrt": ({}, lambda part: math.sqrt(1 - part)),
    "power": ({"exponent": 3.0}, lambda part: (1 - part) ** 3),
}


@pytest.mark.parametrize("shape", FORMS)
@pytest.mark.parametrize("to", [0.0, 0.1])
def test_a_fall_goes_from_the_warm_up_to_the_end(shape: str, to: float) -> None:
    keys, form = FORMS[shape]
    expected = [(step + 1) / 8 if step < 8 else to + (1 - to) * form((step - 8) / 32) for step in range(STEPS)]
    assert run_of(shape=shape, to=to, warmup={"steps": 8}, **keys) == pytest.approx(expected)


def test_a_wsd_may_decay_by_a_power() -> None:
    found = run_of(shape="wsd", decay={"steps": 10}, decay_shape="power", exponent=2.0, to=0.1)
    assert found == pytest.approx([*[1.0] * 30, *(0.1 + 0.9 * (1 - step / 10) ** 2 for step in range(10))])


@pytest.mark.parametrize("half_life", [{"steps": 5}, {"tokens": 5 * 64}, {"fraction": 0.125}])
def test_an_exponential_halves_with_its_half_life(half_life: dict[str, Any]) -> None:
    found = run_of(shape="exponential", half_life=half_life, warmup={"steps": 4})
    assert found == pytest.approx([0.25, 0.5, 0.75, 1.0, *(0.5 ** (step / 5) for step in range(36))])


def test_minicpms_decay_is_an_exponential_that_stays_where_the_decay_ends() -> None:
    wsd = {"shape": "wsd", "decay": {"steps": 8}, "decay_shape": "exponential", "half_life": {"steps": 5}}
    found = run_of(**wsd, horizon={"steps": 30})
    assert found == pytest.approx([*[1.0] * 22, *(0.5 ** (step / 5) for step in range(8)), *[0.5 ** (8 / 5)] * 10])


def test_a_power_of_one_is_linear_and_of_a_half_the_root_to_the_bit() -> None:
    assert run_of(shape="power", exponent=1.0) == run_of(shape="linear")
    assert run_of(shape="power", exponent=0.5) == run_of(shape="sqrt")


def test_points_are_met_exactly_with_lines_cosines_and_jumps_between_them() -> None:
    points = [
        {"steps": 0, "lr": 0.0},
        {"steps": 4, "lr": 1.0},
        {"tokens": 10 * 64, "lr": 1.0},
        {"tokens": 20 * 64, "lr": 0.1, "shape": "cosine"},
        {"tokens": 25 * 64, "lr": 0.1},
        {"tokens": 25 * 64, "lr": 0.03},
    ]
    cosine = [0.1 + 0.9 * (1 + math.cos(math.pi * step / 10)) / 2 for step in range(10)]
    expected = [0, 0.25, 0.5, 0.75, *[1.0] * 6, *cosine, *[0.1] * 5, *[0.03] * 15]
    found = run_of(points=points)
    assert found == pytest.approx(expected)
    assert [found[step] for step in (0, 4, 10, 20, 24, 25)] == [0.0, 1.0, 1.0, 0.1, 0.1, 0.03]


def test_points_in_tokens_count_through_stages_of_different_sizes() -> None:
    points = [{"steps": 0, "lr": 1.0}, {"tokens": 3 * 64 + 2 * 128, "lr": 0.5}]
    found = multipliers(plan_of({"steps": 3}, {"steps": 9, "batch_size": 8}, schedule={"points": points}))
    assert found == pytest.approx([1 - min(step, 5) / 10 for step in range(12)])


def test_points_of_a_stage_are_counted_within_it() -> None:
    points = [{"steps": 0, "lr": 1.0}, {"tokens": 4 * 64, "lr": 2.0}, {"steps": 8, "lr": 0.0}]
    plan = plan_of({"steps": 5}, {"steps": 8, "lr": {"scale": 0.5, "points": points}}, {"steps": 2})
    own = [0.5, 0.625, 0.75, 0.875, 1.0, 0.75, 0.5, 0.25]
    assert multipliers(plan) == pytest.approx([*[1.0] * 5, *own, 1.0, 1.0])


def test_a_cycle_decays_at_its_end_and_the_next_one_is_at_the_peak_at_once() -> None:
    found = run_of(shape="wsd", cycle={"steps": 10, "decay": 4}, to=0.2, warmup={"steps": 2})
    fall = [1 - 0.8 * step / 4 for step in range(4)]
    assert found == pytest.approx([0.5, *[1.0] * 5, *fall, *[*[1.0] * 6, *fall] * 3])


def test_a_cycle_may_rise_again_from_where_the_one_before_ended() -> None:
    found = run_of(shape="wsd", cycle={"steps": 20, "decay": 4, "warmup": 4}, to=0.2)
    fall = [1 - 0.8 * step / 4 for step in range(4)]
    assert found == pytest.approx([*[1.0] * 16, *fall, 0.4, 0.6, 0.8, *[1.0] * 13, *fall])


def test_a_run_that_ends_within_a_cycle_ends_where_the_cycle_stands() -> None:
    short = multipliers(plan_of({"steps": 25}, schedule={"shape": "wsd", "cycle": {"steps": 10, "decay": 2}}))
    assert short == run_of(shape="wsd", cycle={"steps": 10, "decay": 2})[:25]
    assert short[-1] == 1.0


def test_cycles_of_a_stage_are_counted_within_it_and_may_differ_from_stage_to_stage() -> None:
    """As Marin's: a decay over 1 of every 4 steps, then over 2 of every 8."""
    cycles = [{"shape": "wsd", "cycle": {"steps": steps, "decay": decay}} for steps, decay in ((4, 1), (8, 2))]
    found = multipliers(plan_of({"steps": 8, "lr": cycles[0]}, {"steps": 16, "lr": cycles[1]}))
    assert found == pytest.approx([*[1.0] * 8, *[*[1.0] * 7, 0.5] * 2])


@given(st.integers(1, 39), st.integers(1, 60), st.sampled_from(["linear", "cosine", "sqrt", "1-sqrt", "wsd"]))
def test_an_extension_changes_no_step_up_to_its_own_and_ends_at_the_new_horizon(at: int, more: int, shape: str) -> None:
    schedule = {"shape": shape, "to": 0.1, "warmup": {"steps": 3}, "horizon": {"steps": 40}}
    extend = {"at": {"steps": at}, "to": {"steps": 40 + more}}
    before = multipliers(plan_of({"steps": 120}, schedule=schedule))
    after = multipliers(plan_of({"steps": 120}, schedule={**schedule, "extend": extend}))
    assert after[: at + 1] == before[: at + 1]
    assert after[40 + more :] == before[40 + more :] == [0.1] * (80 - more)
    assert all(new >= old for old, new in zip(before[4:], after[4:], strict=True))  # it falls more slowly
    left, length = 40 - at, 40 + more - at
    for step in range(length):
        if step * left % length == 0:  # where a step of the old schedule comes to lie
            assert after[at + step] == pytest.approx(before[at + step * left // length])


def test_a_cosine_that_is_extended_at_its_half_goes_on_by_a_half_cosine() -> None:
    """As Olmo 3's 7B: a schedule of 5T, which at 2.5T was given until 7T."""
    schedule = {"shape": "cosine", "to": 0.1, "horizon": {"steps": 20}}
    plan = plan_of({"steps": 40}, schedule={**schedule, "extend": {"at": {"tokens": 640}, "to": {"steps": 28}}})
    here = (1 + 0.1) / 2
    half = [0.1 + (here - 0.1) * (1 - math.sin(math.pi / 2 * step / 18)) for step in range(18)]
    assert multipliers(plan)[10:28] == pytest.approx(half)


def test_a_stage_may_start_where_the_schedule_stands() -> None:
    stages = ({"steps": 15}, {"steps": 10, "lr": {"from": "here", "shape": "linear", "to": 0.2}}, {"steps": 15})
    found = multipliers(plan_of(*stages, schedule={"shape": "cosine"}))
    run = run_of(shape="cosine")
    assert found[:15] == run[:15]
    assert found[15] == run[15]  # to the bit
    assert found[15:25] == pytest.approx([run[15] * (1 - 0.8 * step / 10) for step in range(10)])
    assert found[25:] == run[25:]


def test_here_is_where_the_stage_before_would_have_gone_on() -> None:
    stages = (
        {"steps": 10, "lr": {"shape": "linear", "to": 0.5}},
        {"steps": 5, "lr": {"from": "here", "shape": "constant", "scale": 0.5}},
        {"steps": 5, "lr": {"from": "here", "shape": "linear", "warmup": {"steps": 2}}},
        {"steps": 5, "lr": {"scale": 0.5}},
        {"steps": 5, "lr": {"from": "here", "points": [{"steps": 0, "lr": 1.0}, {"steps": 5, "lr": 0.0}]}},
    )
    first = [1 - step / 20 for step in range(10)]
    third = [0.125, 0.25, 0.25, 0.25 * 2 / 3, 0.25 / 3]
    expected = [*first, *[0.25] * 5, *third, *[0.5] * 5, 0.5, 0.4, 0.3, 0.2, 0.1]
    assert multipliers(plan_of(*stages)) == pytest.approx(expected)


def test_here_holds_a_value_that_is_no_fraction_through_several_stages() -> None:
    hold = {"from": "here", "shape": "constant"}
    stages = ({"steps": 7}, {"steps": 5, "lr": {**hold, "scale": 0.5}}, {"steps": 5, "lr": {**hold, "scale": 0.5}})
    found = multipliers(plan_of(*stages, schedule={"shape": "cosine", "horizon": {"steps": 40}}))
    here = (1 + math.cos(math.pi * 7 / 40)) / 2
    assert found[7:] == pytest.approx([*[here / 2] * 5, *[here / 4] * 5])


def test_an_anneal_may_start_where_the_schedule_stands() -> None:
    anneal = {"start": 0.75, "lr": {"from": "here", "shape": "linear"}}
    plan = plan_of({"steps": 40}, run={"name": "test", "anneal": anneal}, schedule={"shape": "cosine", "to": 0.1})
    here = 0.1 + 0.9 * (1 + math.cos(math.pi * 30 / 40)) / 2
    assert multipliers(plan)[30:] == pytest.approx([here * (1 - step / 10) for step in range(10)])


def rates(plan: Any, step: int) -> dict[str, float]:
    return dict(plan.settings_at(step).lr)


def test_a_stage_scales_each_group_of_parameters_by_its_own_factor() -> None:
    scale = {"matrix": 0.5, "embedding": 0.1}
    plan = plan_of({"steps": 5}, {"steps": 5, "lr": {"scale": scale}}, {"steps": 5}, optimizer={"lr": 1e-3})
    assert rates(plan, 4) == dict.fromkeys(("matrix", "embedding", "unembedding", "rest"), 1e-3)
    assert rates(plan, 5) == {"matrix": 5e-4, "embedding": 1e-4, "unembedding": 1e-3, "rest": 1e-3}
    assert rates(plan, 10) == rates(plan, 4)
    all_but_one = plan_of({"steps": 5, "lr": {"scale": {"rest": 0.5, "matrix": 1.0}}}, optimizer={"lr": 1e-3})
    assert rates(all_but_one, 0) == {"matrix": 1e-3, "embedding": 5e-4, "unembedding": 5e-4, "rest": 5e-4}


def test_here_is_where_each_group_stands() -> None:
    stages = (
        {"steps": 5, "lr": {"scale": {"embedding": 0.5}}},
        {"steps": 4, "lr": {"from": "here", "shape": "linear", "scale": {"matrix": 0.5}}},
    )
    plan = plan_of(*stages, optimizer={"lr": 1.0})
    assert rates(plan, 7) == {"matrix": 0.25, "embedding": 0.25, "unembedding": 0.5, "rest": 0.5}


def test_one_number_for_all_groups_is_one_curve() -> None:
    plan = plan_of({"steps": 5, "lr": {"scale": {"rest": 0.5}}}, optimizer={"lr": 1e-3})
    assert plan.group_learning_rates == {}
    assert plan.fingerprint(5) == plan_of({"steps": 5, "lr": {"scale": 0.5}}, optimizer={"lr": 1e-3}).fingerprint(5)

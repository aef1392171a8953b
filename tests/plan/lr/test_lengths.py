"""What only a plan knows of a learning rate's lengths: whether they fit the steps that there are."""

from typing import Any

import pytest

from tests.support.plans import plan_of
from trivium.errors import PlanError
from trivium.plan.lr.lengths import MOST_CYCLES

COSINE = {"shape": "cosine", "horizon": {"steps": 20}}


@pytest.mark.parametrize(
    ("schedule", "said"),
    [
        (
            {**COSINE, "extend": {"at": {"steps": 20}, "to": {"steps": 15}}},
            [
                (
                    "schedule.extend.at: is step 20, and the schedule ends at step 20: there is nothing left to "
                    "stretch. Write an earlier one."
                ),
                "schedule.extend.to: is step 15, not after step 20, where the extension begins. Write a later one.",
            ],
        ),
        (
            {"points": [{"steps": 0, "lr": 1.0}, {"steps": 12, "lr": 1.0}, {"tokens": 640, "lr": 0.5}]},
            ["schedule.points[2]: is at step 10, before the one ahead of it, at step 12. Write them in order."],
        ),
        (
            {"shape": "wsd", "cycle": {"steps": 10, "decay": 6}, "warmup": {"steps": 5}},
            ["schedule: a warm-up of 5 and a decay of 6 steps are longer than the 10 steps of a cycle. Shorten it."],
        ),
        (
            {"shape": "exponential", "half_life": {"fraction": 0.001}},
            [
                (
                    "schedule.half_life: is less than half a step of the 40 there are. "
                    "Write half_life = { steps = 1 } or more."
                )
            ],
        ),
    ],
)
def test_lengths_that_do_not_fit_are_refused_all_at_once(schedule: dict[str, Any], said: list[str]) -> None:
    with pytest.raises(PlanError) as caught:
        plan_of({"steps": 40}, schedule=schedule)
    assert [str(problem) for problem in caught.value.problems] == said


def test_a_record_has_room_for_so_many_cycles() -> None:
    cycle = {"shape": "wsd", "cycle": {"steps": 2, "decay": 1}}
    assert plan_of({"steps": 2 * MOST_CYCLES}, schedule=cycle).learning_rate is not None
    with pytest.raises(PlanError) as caught:
        plan_of({"steps": 4 * MOST_CYCLES}, schedule=cycle)
    assert str(caught.value) == (
        "schedule.cycle.steps: makes 2,000 cycles of 4,000 steps, over the 1,000 that there may be. Write 4 or more."
    )


def test_points_of_a_stage_lie_within_it_and_those_of_the_run_need_not() -> None:
    points = [{"steps": 0, "lr": 1.0}, {"steps": 10, "lr": 0.5}, {"steps": 11, "lr": 0.0}]
    assert plan_of({"steps": 5}, schedule={"points": points}).learning_rate is not None
    with pytest.raises(PlanError) as caught:
        plan_of({"steps": 10, "lr": {"points": points}})
    assert str(caught.value) == (
        "stages[0].lr.points[2]: is at step 11 of a stage that has 10. Leave it out, or lengthen the stage."
    )


def test_a_stage_does_not_start_where_the_learning_rate_stands_at_zero() -> None:
    stages = ({"steps": 10, "lr": {"shape": "linear"}}, {"steps": 10, "lr": {"from": "here", "shape": "linear"}})
    with pytest.raises(PlanError) as caught:
        plan_of(*stages)
    assert str(caught.value) == (
        "stages[1].lr.from: starts where the learning rate stands, which is 0: the stage would learn nothing. "
        "Leave it out, or let the stage before end above 0."
    )


def test_points_that_end_at_zero_are_warned_about() -> None:
    points = [{"steps": 0, "lr": 1.0}, {"steps": 5, "lr": 0.0}]
    run, own = plan_of({"steps": 8}, schedule={"points": points}), plan_of({"steps": 8, "lr": {"points": points}})
    assert [str(warning) for warning in run.warnings] == [
        (
            "stages[0]: the learning rate is 0 at its last 3 steps: schedule.points end at step 5. Raise the last "
            'point, or give the stage its own rate: lr = { shape = "linear" }.'
        )
    ]
    assert [str(warning) for warning in own.warnings] == [
        "stages[0].lr.points: the learning rate is 0 at its last 3 steps. Raise the last point."
    ]
    through_zero = [*points, {"steps": 6, "lr": 0.0}, {"steps": 8, "lr": 1.0}]
    assert plan_of({"steps": 8}, schedule={"points": through_zero}).warnings == ()


def test_curves_that_do_not_depend_on_the_runs_length_are_known_before_it() -> None:
    """The stage's length is that of a source that is not there."""
    exponential = {"shape": "exponential", "half_life": {"steps": 5}}
    for schedule in ({"points": [{"steps": 0, "lr": 1.0}]}, exponential, {**COSINE}):
        assert plan_of({"epochs": 1}, schedule=schedule).learning_rate is not None
    by_fraction = {"shape": "exponential", "half_life": {"fraction": 0.5}}
    cycle = {"shape": "wsd", "cycle": {"steps": 10, "decay": 1}}
    for schedule in (by_fraction, cycle):
        plan = plan_of({"epochs": 1}, schedule=schedule)
        assert plan.learning_rate is None
        assert "schedule: the learning rate is not known before the run's length is." in map(str, plan.gaps)

"""Learning rates in words, in a plan's text and in its JSON."""

import io
from typing import Any

import pytest
from rich.console import Console

from tests.support.plans import plan_of
from trivium.plan.export import plan_json
from trivium.plan.lr.words import rate_lines
from trivium.plan.show import show_plan

EXTEND = {"at": {"steps": 597_046}, "to": {"tokens": "7T"}}
POINTS = [{"steps": 0, "lr": 1.0}, {"tokens": "5T", "lr": 0.55}, {"tokens": "7T", "lr": 0.1, "shape": "cosine"}]


@pytest.mark.parametrize(
    ("schedule", "line"),
    [
        (
            {"shape": "cosine", "horizon": {"tokens": "5T"}, "extend": EXTEND},
            "schedule: cosine, stretched after 597,046 steps to end at 7T tokens",
        ),
        ({"points": POINTS}, "schedule: points 1 at 0 steps, 0.55 at 5T tokens, 0.1 at 7T tokens (cosine)"),
        (
            {"shape": "wsd", "cycle": {"steps": 20_000, "decay": 2000, "warmup": 500}},
            "schedule: wsd (linear), a decay over the last 2,000 of every 20,000 steps, then a rise over 500",
        ),
        (
            {"shape": "exponential", "half_life": {"fraction": 0.25}},
            "schedule: exponential, half in 25%",
        ),
        ({"shape": "power", "exponent": 2.0}, "schedule: power, exponent 2"),
    ],
)
def test_a_schedule_is_told_where_two_values_do_not(schedule: dict[str, Any], line: str) -> None:
    plan = plan_of({"steps": 40}, schedule=schedule)
    assert rate_lines(plan) == [line] == plan_json(plan)["learning_rates"]
    text = io.StringIO()
    show_plan(plan, Console(file=text, width=200))
    assert f"\n{line}\n" in text.getvalue()


def test_a_stages_own_curve_is_told_by_its_name() -> None:
    here = {"from": "here", "shape": "linear", "scale": {"matrix": 0.5}}
    plan = plan_of({"steps": 4}, {"steps": 4, "lr": here}, {"steps": 4, "lr": {"scale": 0.5}})
    told = "learning rate linear, from where it stands, matrix x 0.5, embedding x 1, unembedding x 1, rest x 1"
    assert rate_lines(plan) == [f"stage-1: {told}"]
    stages = plan_json(plan)["stages"]
    assert stages[1]["lr"] == {"from": "here", "shape": "linear", "scale": {"matrix": 0.5, "rest": 1.0}}
    assert (stages[0]["lr"], stages[2]["lr"]) == (None, {"scale": 0.5})


def test_shapes_that_two_values_tell_are_not_told_again() -> None:
    wsd = {"shape": "wsd", "warmup": {"steps": 5}}
    assert rate_lines(plan_of({"steps": 40, "lr": {"shape": "cosine", "to": 0.1}}, schedule=wsd)) == []

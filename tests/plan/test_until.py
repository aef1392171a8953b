"""Stages that end on a figure, in the plan: the past stays, what follows comes earlier, at the rates of its place."""

from io import StringIO
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from rich.console import Console

from tests.support.plans import config_of
from trivium.errors import PlanError
from trivium.plan.export import plan_json
from trivium.plan.make import make_plan
from trivium.plan.show import early_lines, headline, show_plan
from trivium.run.decisions import BatchResized, Decision, StageEnded

UNTIL = {"validation": "all", "below": 2.5}
RULE = "validation loss below 2.5"
EVALUATE = {"every": 2}
SCHEDULES: list[dict[str, Any]] = [
    {"shape": "cosine", "warmup": {"steps": 3}},
    {"shape": "wsd", "decay": {"tokens": 300}},
    {"points": [{"steps": 0, "lr": 1.0}, {"tokens": 900, "lr": 0.3}]},
    {"shape": "linear", "horizon": {"tokens": 2_000}},
]
LRS: list[dict[str, Any] | None] = [None, {"scale": 0.5}, {"shape": "cosine"}, {"shape": "linear", "from": "here"}]


@st.composite
def stages(draw: st.DrawFn) -> dict[str, Any]:
    """A stage in steps or tokens that may end on a figure, and may have a learning rate of its own."""
    length = draw(st.sampled_from([{"steps": 12}, {"tokens": 640}, {"tokens": 500}, {"steps": 7}]))
    stage = {**length, "batch_size": draw(st.integers(1, 4)), "until": UNTIL}
    lr = draw(st.sampled_from(LRS))
    return stage if lr is None else {**stage, "lr": lr}


def ended(step: int, rule: str = RULE) -> StageEnded:
    return StageEnded(step=step, until=rule, figure=2.4)


@given(st.lists(stages(), min_size=1, max_size=4), st.sampled_from(SCHEDULES), st.data())
def test_a_stages_end_leaves_the_steps_before_it_and_the_rates_of_those_after_it(
    said: list[dict[str, Any]], schedule: dict[str, Any], data: st.DataObject
) -> None:
    said[0].pop("lr", None)  # which may start from a stage before
    config = config_of(said, schedule=schedule, evaluate=EVALUATE)
    try:
        longest = plan = make_plan(config)
    except PlanError:  # a stage that starts where the rate is 0
        assume(False)
    decisions: list[Decision] = []
    for number, stage in enumerate(longest.stages):
        now = plan.stages[number]
        assert now.start is not None
        assert now.steps is not None
        step = data.draw(st.integers(now.start + 1, now.start + now.steps))
        if step == now.end:
            continue
        try:
            after = make_plan(config, decisions=[*decisions, ended(step)])
        except PlanError:
            continue  # what follows would start at a rate of 0
        assert after.fingerprint(step) == plan.fingerprint(step)
        decisions.append(ended(step))
        plan = after
        assert plan.stages[number].end == step
        assert plan.stages[number].longest == stage.steps
    assert plan.longest_steps == longest.total_steps
    for stage, place in zip(plan.stages, longest.stages, strict=True):
        assert stage.start is not None
        assert stage.steps is not None
        assert place.start is not None
        if (said[stage.index].get("lr") or {}).get("from") is None:
            rates = [plan.lr_multiplier(stage.start + step) for step in range(stage.steps)]
            assert rates == [longest.lr_multiplier(place.start + step) for step in range(stage.steps)]


def test_a_size_that_is_decided_after_an_end_is_the_next_stages() -> None:
    config = config_of([{"tokens": 1_280, "until": UNTIL}, {"tokens": 1_280}], evaluate=EVALUATE)
    longest = make_plan(config)
    plan = make_plan(config, decisions=[ended(6), BatchResized(step=10, size=2)])
    assert [(stage.start, stage.steps, stage.longest) for stage in plan.stages] == [(0, 6, 20), (6, 36, 36)]
    assert [piece.size for piece in plan.stages[1].batch_pieces] == [4, 2]
    assert longest.longest_steps == 40
    assert plan.longest_steps == 56  # the next stage has more steps, and the one that ended none of another size
    # At one step, the stage ends before the next one's size is decided.
    at_once = make_plan(config, decisions=[ended(6), BatchResized(step=6, size=2)])
    assert [(stage.start, stage.steps, stage.longest) for stage in at_once.stages] == [(0, 6, 20), (6, 40, 40)]


def test_a_decision_on_another_rule_ends_nothing() -> None:
    config = config_of([{"steps": 20, "until": UNTIL}, {"steps": 5}], evaluate=EVALUATE)
    assert make_plan(config, decisions=[ended(6, "validation loss below 2.4")]).total_steps == 25
    assert make_plan(config, decisions=[ended(6)]).total_steps == 11
    assert make_plan(config, decisions=[ended(20)]).stages[0].ended is None  # step 20 is the planned end


def test_at_most_is_the_length_in_either_unit() -> None:
    for at_most in ("1280", {"tokens": 1_280}, {"steps": 20}):
        plan = make_plan(config_of([{"until": {**UNTIL, "at_most": at_most}}], evaluate=EVALUATE))
        assert plan.total_steps == 20


def test_a_figure_that_may_not_be_measured_within_the_stage_is_refused() -> None:
    with pytest.raises(PlanError) as error:
        make_plan(config_of([{"steps": 20, "until": UNTIL}], evaluate={"every": 20}))
    assert str(error.value) == (
        "stages[0].until: its figure is measured every 20 steps, and the stage has 20 at the most. "
        "Lower evaluate.every, or lengthen the stage."
    )
    assert make_plan(config_of([{"steps": 20, "until": UNTIL}], evaluate={"every": 19}))


def test_the_plan_shows_the_longest_and_says_that_it_may_end_early() -> None:
    until = {"score": "needle", "at_least": 0.95}
    evaluate = {"every": 2, "tasks": [{"task": "needle", "tokens": 16}], "tasks_every": 5, "weights": "average"}
    said: list[dict[str, Any]] = [{"steps": 20, "until": UNTIL}, {"steps": 9, "until": until, "average": {"ema": 0.9}}]
    config = config_of([*said, {"steps": 3}], evaluate=evaluate)
    shown = StringIO()
    plan = make_plan(config)
    show_plan(plan, Console(file=shown, width=200))
    lines = [line.rstrip() for line in shown.getvalue().splitlines()]
    assert lines[0] == "test: 3 stages, 32 steps, 2,048 tokens at the most"
    assert [line.split()[:3] for line in lines if line.startswith("stage-")][:3] == [
        ["stage-0", "[0,", "20)*"],
        ["stage-1", "[20,", "29)*"],
        ["stage-2", "[29,", "32)"],
    ]
    assert "stage-0: may end earlier, when the validation loss is below 2.5, checked every 2 steps" in lines
    assert (
        "stage-1: may end earlier, when the score needle of the average is at least 0.95, checked every 5 steps, "
        "keeps an average (ema 0.9)"
    ) in lines
    assert "* at the longest. What follows begins earlier then, at the rates shown." in lines
    decided = make_plan(config, decisions=[ended(6), ended(12, "score needle at least 0.95")])
    assert headline(decided) == "test: 3 stages, 15 steps, 960 tokens"
    assert plan_json(decided)["stages"][0]["until"] == "ended at step 6 of 20 with validation loss below 2.5 (2.4)"
    assert [stage["ended_early"] for stage in plan_json(decided)["stages"]] == [True, True, False]


def test_the_plan_says_whose_rate_starts_where_it_stands_then() -> None:
    here = {"from": "here", "shape": "linear", "to": 0.5}
    said: list[dict[str, Any]] = [
        {"steps": 20, "until": UNTIL},
        {"steps": 4, "lr": here},
        {"steps": 4, "lr": here},
        {"steps": 4},
        {"steps": 4, "lr": here},
    ]
    (line,) = early_lines(make_plan(config_of(said, evaluate=EVALUATE)))
    assert line == (
        "* at the longest. What follows begins earlier then, at the rates shown; "
        "stage-1, stage-2 from where the rate stands then."
    )

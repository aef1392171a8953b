"""Batch sizes that change within a stage, and lengths for each parameter: resolved in the plan, for every step."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.support.corpus import make_config, write_source
from tests.support.plans import config_of, plan_of
from trivium.errors import PlanError
from trivium.plan.export import objective_lines, plan_json
from trivium.plan.make import make_plan
from trivium.plan.plan import Plan
from trivium.plan.show import decision_lines, roundings
from trivium.run.decisions import BatchResized

RAMP = {"from": 2, "to": 6, "over": 160, "by": 2}  # 10 rows of 16


@st.composite
def stages(draw: st.DrawFn) -> dict[str, Any]:
    """A stage in steps or tokens, whose batch size is one number or a ramp."""
    size: int | dict[str, int] = draw(st.integers(1, 5))
    if draw(st.booleans()):
        by, increments = draw(st.integers(1, 3)), draw(st.integers(1, 4))
        size = {"from": draw(st.integers(1, 3)), "by": by, "over": draw(st.integers(1, 900))}
        size["to"] = size["from"] + by * increments
    length = draw(st.sampled_from([{"steps": 25}, {"tokens": 2_000}, {"tokens": 1_999}, {"steps": 7}]))
    return {**length, "seq_len": draw(st.integers(1, 24)), "batch_size": size}


decided = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 9)), max_size=3)


def plain_steps(said: list[dict[str, Any]], decisions: list[BatchResized]) -> list[tuple[int, int, int]]:
    """Stage, rows and tokens before every step of a run, by a plain loop."""
    steps: list[tuple[int, int, int]] = []
    tokens = 0
    for number, stage in enumerate(said):
        own, seq_len, asked = 0, stage["seq_len"], stage["batch_size"]
        start, changed = len(steps), None
        while (len(steps) - start < stage["steps"]) if "steps" in stage else (own < stage["tokens"]):
            changed = next((each.size for each in decisions if each.step == len(steps)), changed)
            size = asked
            if isinstance(asked, dict):
                increments = (asked["to"] - asked["from"]) // asked["by"]
                passed = min(increments, own * increments // asked["over"])
                size = asked["from"] + asked["by"] * passed
            size = changed or size
            steps.append((number, size, tokens))
            own, tokens = own + size * seq_len, tokens + size * seq_len
    return steps


@given(st.lists(stages(), min_size=1, max_size=4), decided)
def test_every_step_has_the_size_and_the_tokens_before_it_of_a_plain_loop(
    said: list[dict[str, Any]], drawn: list[tuple[int, int]]
) -> None:
    decisions = [BatchResized(step=step, size=size) for step, size in sorted(dict(drawn).items())]
    try:
        plan = make_plan(config_of(said), decisions=decisions)
    except PlanError:  # a ramp that does not end within its stage
        assume(False)
    expected = plain_steps(said, decisions)
    assert plan.total_steps == len(expected)
    found = [plan.settings_at(step) for step in range(len(expected))]
    assert [(now.stage, now.batch_size, now.tokens_before) for now in found] == expected


@given(st.lists(stages(), min_size=1, max_size=3), st.data())
def test_a_decision_leaves_the_steps_before_it_as_they_were(said: list[dict[str, Any]], data: st.DataObject) -> None:
    config = config_of(said, schedule={"shape": "constant", "warmup": {"steps": 3}})
    try:
        plan = make_plan(config)
    except PlanError:
        assume(False)
    decisions: list[BatchResized] = []
    for _ in range(data.draw(st.integers(1, 3))):
        step = data.draw(st.integers(0, plan.known_steps - 1))
        decisions.append(BatchResized(step=step, size=data.draw(st.integers(1, 9))))
        before, plan = plan, make_plan(config, decisions=decisions)
        assert plan.fingerprint(step) == before.fingerprint(step)
        changed = plan.settings_at(step).batch_size != before.settings_at(step).batch_size
        assert (plan.fingerprint(step + 1) != before.fingerprint(step + 1)) == changed
        for stage, other in zip(plan.stages, before.stages, strict=True):
            asked = stage.config.budget_tokens
            if asked is None:
                assert stage.steps == other.steps
            else:
                assert stage.tokens is not None
                assert stage.end is not None
                last = stage.size_at(stage.end - 1) * stage.seq_len
                assert stage.tokens - last < asked <= stage.tokens


def test_a_record_has_one_number_until_the_size_changes() -> None:
    plan = plan_of({"steps": 8, "batch_size": RAMP})
    assert [plan.settings_at(step).batch_size for step in range(8)] == [2, 2, 2, 4, 6, 6, 6, 6]
    sizes = [plan.record(step).get("stages[0].batch_size") for step in (1, 3, 4, 8)]
    assert sizes == [2, 2, [[0, 2], [3, 4]], [[0, 2], [3, 4], [4, 6]]]


def test_a_ramp_that_its_stage_does_not_finish_is_refused() -> None:
    with pytest.raises(PlanError) as error:
        plan_of({"steps": 4, "batch_size": RAMP})
    assert str(error.value) == (
        "stages[0].batch_size.over: is 160 tokens, and no step of the stage of 160 has the last size. "
        "Shorten it, or lengthen the stage."
    )


def test_a_fade_in_steps_has_the_rows_of_its_steps() -> None:
    mixture = {"mixture": {"code": 1.0}}
    plan = plan_of({"steps": 4}, {"steps": 8, "batch_size": RAMP, "fade": {"steps": 4}, **mixture})
    assert plan.stages[1].mixture is not None
    assert plan.stages[1].mixture.fade.rows == 2 + 2 + 2 + 4
    centred = {"fade": {"steps": 3, "center": True}, **mixture}
    plan = plan_of({"steps": 8, "batch_size": RAMP}, {"steps": 4, "batch_size": 5, **centred})
    first, second = (stage.mixture for stage in plan.stages)
    assert first is not None
    assert second is not None
    assert first.out is not None
    assert (first.out.first, first.out.fade.rows) == (34 - 9, 18)  # a step and a half of 6 rows
    assert (second.fade.rows, second.fade.before) == (16, 8)  # of 5 rows, rounded up on either side


def test_a_decision_within_a_fade_leaves_its_rows() -> None:
    stages: list[dict[str, Any]] = [{"steps": 4}, {"steps": 8, "fade": {"steps": 4}, "mixture": {"code": 1.0}}]
    plan = make_plan(config_of(stages), decisions=[BatchResized(step=5, size=2)])
    assert plan.stages[1].mixture is not None
    assert plan.stages[1].mixture.fade.rows == 16


def test_rates_in_tokens_follow_the_sizes() -> None:
    schedule = {"shape": "constant", "warmup": {"tokens": 16 * 8}}
    plan = plan_of({"steps": 8, "batch_size": RAMP, "lr": {"warmup": {"tokens": 160}}}, schedule=schedule)
    assert plan.learning_rate is not None
    assert plan.stages[0].steps_for(160) == 4
    assert [plan.lr_multiplier(step) < 1 for step in range(6)] == [True, True, True, False, False, False]


def test_an_anneal_continues_with_the_size_that_its_stage_has_there() -> None:
    anneal = {"start": 0.75, "lr": {"shape": "linear"}}
    run = {"name": "test", "anneal": anneal}
    plan = plan_of({"steps": 12, "batch_size": RAMP}, run=run)
    assert [stage.batch_size for stage in plan.stages] == [6, 6]
    assert [piece.size for piece in plan.stages[1].batch_pieces] == [6]
    decided = make_plan(config_of([{"tokens": 12 * 64}], run=run), decisions=[BatchResized(step=2, size=8)])
    assert [[piece.size for piece in stage.batch_pieces] for stage in decided.stages] == [[4, 8], [8]]
    assert decided.tokens_before(decided.known_steps) == 12 * 64


def test_tokens_for_each_parameter_count_matrices_and_the_output_head(tmp_path: Path) -> None:
    web = {"kind": "tokens", "path": str(write_source(tmp_path / "web", [[9, 30]]))}
    model = {"layers": 2, "width": 32, "heads": 2, "ffn": 64, "vocab": 300}
    stage = {"tokens": {"per_parameter": 1.5}, "seq_len": 16, "batch_size": 4}
    plan = make_plan(make_config({"web": web}, [stage], model=model))
    counted = 2 * (4 * 32 * 32 + 3 * 32 * 64) + 300 * 32
    assert plan.model is not None
    assert plan.model.matrix_parameters == counted == 30_080
    assert plan.stages[0].steps == -(-counted * 3 // (2 * 64)) == 705
    assert plan_json(plan)["stages"][0]["asked"] == {"tokens": 45_120, "per_parameter": 1.5}
    assert roundings(plan)[1:] == [
        (
            "stage-0: 1.5 tokens for each of 30.1k parameters (matrices of layers and output head): "
            "45,120 tokens requested, 45,120 planned (705 steps)."
        )
    ]
    tied = make_plan(make_config({"web": web}, [stage], model={**model, "tied_embeddings": True}))
    assert tied.stages[0].steps == 705


def test_tokens_for_each_parameter_of_a_model_that_is_not_known_are_a_gap() -> None:
    plan = plan_of({"tokens": {"per_parameter": 20}}, {"steps": 2})
    assert [stage.steps for stage in plan.stages] == [None, 2]
    said = "stages[0].tokens: counts parameters of a model that is not known yet: where this stage ends is not known."
    assert said in [str(gap) for gap in plan.gaps]


def shown(plan: Plan) -> list[str]:
    return objective_lines(plan_json(plan)["stages"])


def test_sizes_and_decisions_are_shown_with_their_steps() -> None:
    plan = make_plan(
        config_of([{"steps": 4}, {"steps": 20, "batch_size": 8}]),
        decisions=[BatchResized(step=10, size=6), BatchResized(step=14, size=8)],
    )
    assert shown(plan) == ["stage-1: 8 rows in a step, 6 from step 10, 8 from step 14"]
    assert decision_lines(plan) == [
        "",
        "decided from step 10 on: 6 rows in a step, to the stage's end",
        "decided from step 14 on: 8 rows in a step, to the stage's end",
    ]
    assert plan_json(plan)["stages"][1]["batches"] == [[0, 8], [6, 6], [10, 8]]
    many = plan_of({"steps": 40, "batch_size": {"from": 2, "to": 12, "over": 1600, "by": 1}})
    sizes = plan_json(many)["stages"][0]["batches"]
    first, last = sizes[1], sizes[-1]
    begin = f"stage-0: 2 rows in a step, {first[1]} from step {first[0]}, and so on in {len(sizes)} sizes"
    assert shown(many) == [f"{begin}, 12 from step {last[0]}"]

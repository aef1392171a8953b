"""Stages cover the run without gap or overlap, and every step finds its settings."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.corpus import make_config, write_source
from tests.support.plans import config_of, plan_of
from trivium.engine.base import StepSettings
from trivium.errors import PlanError
from trivium.plan.make import make_plan
from trivium.plan.plan import Plan

budgets = st.one_of(
    st.fixed_dictionaries({"steps": st.integers(1, 30)}),
    st.fixed_dictionaries({"tokens": st.integers(1, 5_000)}),
)
sizes = st.one_of(
    st.fixed_dictionaries({"batch_size": st.integers(1, 5)}),
    st.builds(lambda rows: {"rows": rows}, st.integers(1, 5)),
)


@st.composite
def stages(draw: st.DrawFn) -> dict[str, Any]:
    """A stage in steps or in tokens, its batch in rows or in tokens."""
    seq_len = draw(st.integers(1, 64))
    size = draw(sizes)
    batch = {"batch_tokens": size["rows"] * seq_len} if "rows" in size else size
    lr = draw(st.sampled_from([None, {"scale": 0.5}, {"shape": "linear", "to": 0.1}, {"shape": "constant"}]))
    return {**draw(budgets), "seq_len": seq_len, **batch, **({"lr": lr} if lr else {})}


many_stages = st.lists(stages(), min_size=1, max_size=6)


def rows_of(stage: dict[str, Any]) -> int:
    return int(stage.get("batch_size", stage.get("batch_tokens", 0) // stage["seq_len"]))


@given(many_stages)
def test_stages_cover_the_run_without_gap_or_overlap(said: list[dict[str, Any]]) -> None:
    plan = plan_of(*said)
    begin = 0
    for stage, asked in zip(plan.stages, said, strict=True):
        assert stage.start == begin
        assert stage.end is not None
        assert stage.end > begin
        begin = stage.end
        per_step = rows_of(asked) * asked["seq_len"]
        assert stage.size_at(stage.start) * stage.seq_len == per_step
        assert stage.tokens == stage.steps * per_step
        if "steps" in asked:
            assert stage.steps == asked["steps"]
        else:
            # Rounded up to whole steps: enough, and one step less would not be.
            assert stage.tokens - per_step < asked["tokens"] <= stage.tokens
    assert plan.total_steps == begin
    owners = [plan.stage_at(step).index for step in range(begin)]
    assert owners == [stage.index for stage in plan.stages for _ in range(stage.steps or 0)]


@settings(max_examples=50)
@given(many_stages)
def test_the_settings_of_every_step_agree_with_a_plain_loop(said: list[dict[str, Any]]) -> None:
    plan = plan_of(*said, optimizer={"lr": 0.5, "weight_decay": 0.25}, schedule={"shape": "linear", "to": 0.0})
    total = plan.total_steps
    assert total is not None
    step = tokens = 0
    for number, (asked, stage) in enumerate(zip(said, plan.stages, strict=True)):
        rows, seq_len, lr = rows_of(asked), asked["seq_len"], asked.get("lr", {})
        length = asked["steps"] if "steps" in asked else -(-asked["tokens"] // (rows * seq_len))
        for place in range(length):
            if lr.get("shape") == "linear":
                multiplier = 1 - 0.9 * place / length
            elif lr.get("shape") == "constant":
                multiplier = 1.0
            else:
                multiplier = lr.get("scale", 1.0) * (1 - step / total)
            found = plan.settings_at(step)
            assert found.lr_multiplier == pytest.approx(multiplier)
            assert found == StepSettings(
                step=step,
                stage=number,
                seq_len=seq_len,
                batch_size=rows,
                tokens_before=tokens,
                lr_multiplier=found.lr_multiplier,
                lr=dict.fromkeys(("matrix", "embedding", "unembedding", "rest"), found.lr_multiplier * 0.5),
                momentum=found.momentum,
                weight_decay=0.25,
            )
            assert plan.tokens_before(step) == tokens
            step += 1
            tokens += rows * seq_len
        assert stage.end == step
    assert plan.tokens_before(total) == tokens


@pytest.mark.parametrize("step", [-1, 10, 11])
def test_a_step_outside_the_run_is_refused(step: int) -> None:
    plan = plan_of({"steps": 4}, {"steps": 6})
    with pytest.raises(PlanError, match=rf"^there is no step {step}: the run has 10 steps, from 0 to 9\.$"):
        plan.settings_at(step)


def test_everything_of_a_stage_changes_on_its_first_step() -> None:
    plan = plan_of(
        {"steps": 3}, {"steps": 2, "seq_len": 32, "batch_size": 2, "lr": {"scale": 0.5}, "seed": 9}, {"steps": 1}
    )
    found = [plan.settings_at(step) for step in range(6)]
    assert [now.stage for now in found] == [0, 0, 0, 1, 1, 2]
    assert [now.seq_len for now in found] == [16, 16, 16, 32, 32, 16]
    assert [now.batch_size for now in found] == [4, 4, 4, 2, 2, 4]
    assert [now.lr_multiplier for now in found] == [1, 1, 1, 0.5, 0.5, 1]
    assert [plan.stage_at(step).seed for step in range(6)] == [1234, 1234, 1234, 9, 9, 1234]


def test_what_a_stage_gives_adds_up_to_its_rows() -> None:
    mixture = {"web": 0.7, "code": 0.2, "math": 0.1}
    (stage,) = plan_of({"steps": 50, "mixture": mixture}).stages
    rows = {name: given.rows for name, given in stage.uses.items()}
    assert sum(rows.values()) == stage.rows == 200
    for name, share in mixture.items():
        assert abs(rows[name] - 200 * share) <= 1.68


def test_weights_are_normalised_and_tempered() -> None:
    (plain,) = plan_of({"steps": 1, "weights": {"web": 3, "code": 1}}).stages
    assert plain.shares is not None
    assert {name: float(share) for name, share in plain.shares.items()} == {"web": 0.75, "code": 0.25}
    (even,) = plan_of({"steps": 1, "weights": {"web": 4, "code": 1, "math": 0}, "temperature": 2.0}).stages
    assert even.shares is not None
    assert {name: round(float(share), 6) for name, share in even.shares.items()} == {
        "web": round(2 / 3, 6),
        "code": round(1 / 3, 6),
        "math": 0.0,
    }


@pytest.mark.parametrize(
    ("stage", "what"),
    [
        (
            {"weights": {"web": 1e12, "code": 1}},
            (
                "stages[0]: code: a share of 1e-12 is too small beside the others: "
                "a split of two shares goes down to 1 in 2**31. Write 0 or a larger share."
            ),
        ),
        (
            {"weights": {"web": 2, "code": 1}, "temperature": 1e-4},
            "stages[0]: temperature: 0.0001 leaves nothing of code. Write a higher one.",
        ),
    ],
)
def test_shares_that_no_mixture_can_hold_are_a_problem_of_their_stage(stage: dict[str, Any], what: str) -> None:
    with pytest.raises(PlanError) as caught:
        plan_of({"steps": 5, **stage})
    assert str(caught.value) == what


def test_anneal_turns_the_end_of_the_run_into_a_stage() -> None:
    anneal = {"start": 0.9, "mixture": {"code": 1.0}, "lr": {"shape": "linear", "to": 0.0}}
    plan = plan_of({"steps": 60}, {"steps": 40, "seq_len": 32}, run={"name": "test", "anneal": anneal})
    assert [(stage.name, stage.start, stage.end) for stage in plan.stages] == [
        ("stage-0", 0, 60),
        ("stage-1", 60, 90),
        ("anneal", 90, 100),
    ]
    last = plan.stages[-1]
    assert (last.seq_len, last.batch_size) == (32, 4)
    assert {name: float(share) for name, share in (last.shares or {}).items()} == {"code": 1.0}
    assert [plan.lr_multiplier(step) for step in (89, 90, 95, 99)] == pytest.approx([1.0, 1.0, 0.5, 0.1])


def test_anneal_outside_the_last_stage_is_refused() -> None:
    anneal = {"start": 0.5, "lr": {"scale": 0.5}}
    with pytest.raises(PlanError) as caught:
        plan_of({"steps": 60}, {"steps": 40}, run={"name": "test", "anneal": anneal})
    assert str(caught.value) == (
        "run.anneal.start: is 0.5, which is step 50, not inside the last stage of steps [60, 100). "
        "Write a start between 0.61 and 1."
    )


def test_a_stage_in_epochs_of_a_source_that_is_not_on_disk_leaves_its_end_open() -> None:
    plan = make_plan(config_of([{"steps": 5}, {"epochs": {"web": 1}}, {"steps": 5}]))
    assert [(stage.start, stage.end) for stage in plan.stages] == [(0, 5), (5, None), (None, None)]
    assert plan.total_steps is None
    assert plan.known_steps == 5
    assert plan.settings_at(4).tokens_before == 4 * 64


def on_disk(tmp_path: Path, *stages: dict[str, Any], **tables: Any) -> Plan:
    source = write_source(tmp_path / "web", [[8] * 8])
    return make_plan(
        make_config({"web": source}, [{"seq_len": 8, "batch_size": 2, **each} for each in stages], **tables)
    )


def test_a_complete_plan_has_what_the_plan_has_and_no_gaps(tmp_path: Path) -> None:
    plan = on_disk(tmp_path, {"epochs": 1}, {"steps": 2}, model={"size": "tiny", "vocab": 100})
    complete = plan.complete()
    assert [(stage.start, stage.steps, stage.end) for stage in complete.stages] == [(0, 4, 4), (4, 2, 6)]
    assert [(stage.rows, list(stage.shares)) for stage in complete.stages] == [(8, ["web"]), (4, ["web"])]
    assert (complete.total_steps, complete.model, complete.learning_rate) == (6, plan.model, plan.learning_rate)
    assert complete.stage_at(4) is complete.stages[1]
    assert complete.fingerprint(6) == plan.fingerprint(6)
    assert complete.settings_at(5) == plan.settings_at(5)
    assert complete.complete() is complete
    assert complete.readable() is complete


def test_a_plan_without_a_model_can_be_read_and_not_trained(tmp_path: Path) -> None:
    plan = on_disk(tmp_path, {"steps": 2})
    assert plan.readable().total_steps == 2
    with pytest.raises(PlanError) as error:
        plan.complete()
    assert str(error.value) == (
        "model.vocab: is missing, and no tokenizer gives it. Write vocab = 64 or more: the largest id is 63."
    )


def test_a_plan_with_gaps_is_refused_with_all_of_them() -> None:
    plan = plan_of({"steps": 5}, {"epochs": {"web": 1}})
    for ask in (plan.readable, plan.complete):
        with pytest.raises(PlanError) as error:
            ask()
        *found, last = map(str, error.value.problems)
        assert found == [str(gap) for gap in plan.gaps]
        assert last == "the plan is not complete, so that nothing can be read yet."

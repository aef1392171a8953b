"""The learning rate and the momentum of every step, against formulas written out plainly."""

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.plans import multipliers, plan_of
from trivium.errors import PlanError

STEPS = 40


def run_of(**schedule: Any) -> list[float]:
    """The multipliers of a run of 40 steps in one stage."""
    return multipliers(plan_of({"steps": STEPS}, schedule=schedule))


def linear(part: float) -> float:
    return 1 - part


def cosine(part: float) -> float:
    return (1 + math.cos(math.pi * part)) / 2


def one_minus_sqrt(part: float) -> float:
    return 1 - math.sqrt(part)


def sqrt_of_the_rest(part: float) -> float:
    return math.sqrt(1 - part)


def falling(form: Callable[[float], float], begin: int, end: int, to: float, step: int) -> float:
    """1 at `begin`, `to` at `end`."""
    return to + (1 - to) * form((step - begin) / (end - begin))


def test_constant_is_1_throughout() -> None:
    assert run_of() == run_of(shape="constant") == [1.0] * STEPS


@pytest.mark.parametrize(("shape", "form"), [("linear", linear), ("cosine", cosine)])
@pytest.mark.parametrize("warmup", [0, 1, 8])
@pytest.mark.parametrize("to", [0.0, 0.1, 1.0])
def test_linear_and_cosine_fall_from_the_warm_up_to_the_end(
    shape: str, form: Callable[[float], float], warmup: int, to: float
) -> None:
    expected = [(step + 1) / warmup if step < warmup else falling(form, warmup, 40, to, step) for step in range(40)]
    assert run_of(shape=shape, to=to, warmup={"steps": warmup}) == pytest.approx(expected)


@pytest.mark.parametrize("first", [0.0, 0.01, 0.5])
def test_a_warm_up_may_begin_at_a_fraction_of_the_peak(first: float) -> None:
    rise = [first + (1 - first) * step / 8 for step in range(8)]
    run = run_of(warmup={"steps": 8}, warmup_from=first)
    assert run == pytest.approx([*rise, *[1.0] * 32])
    lr = {"warmup": {"steps": 8}, "warmup_from": first}
    again = multipliers(plan_of({"steps": 10}, {"steps": 20, "lr": {"scale": 0.5, **lr}}))
    assert again == pytest.approx([*[1.0] * 10, *(part / 2 for part in rise), *[0.5] * 12])
    shaped = multipliers(plan_of({"steps": 10}, {"steps": 20, "lr": {"shape": "constant", **lr}}))
    assert shaped == pytest.approx([*[1.0] * 10, *rise, *[1.0] * 12])


@pytest.mark.parametrize(
    ("decay_shape", "form"),
    [("linear", linear), ("cosine", cosine), ("1-sqrt", one_minus_sqrt), ("sqrt", sqrt_of_the_rest)],
)
@pytest.mark.parametrize(("decay", "fall"), [({"steps": 10}, 30), ({"fraction": 0.5}, 20), (None, 32)])
def test_wsd_rises_stays_and_falls(
    decay_shape: str, form: Callable[[float], float], decay: dict[str, Any] | None, fall: int
) -> None:
    given = {} if decay is None else {"decay": decay}

    def expected(step: int) -> float:
        if step < 4:
            return (step + 1) / 4
        return 1.0 if step < fall else falling(form, fall, 40, 0.1, step)

    found = run_of(shape="wsd", warmup={"steps": 4}, decay_shape=decay_shape, to=0.1, **given)
    assert found == pytest.approx([expected(step) for step in range(40)])


def test_inverse_sqrt_falls_from_the_last_step_of_its_warm_up() -> None:
    expected = [(step + 1) / 8 if step < 8 else math.sqrt(8 / (step + 1)) for step in range(40)]
    assert run_of(shape="inverse-sqrt", warmup={"steps": 8}) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("warmup", "steps"),
    [
        ({"steps": 10}, 10),
        ({"fraction": 0.25}, 10),
        ({"fraction": 0.26}, 10),
        ({"fraction": 0.2625}, 11),
        ({"tokens": 10 * 64}, 10),
        ({"tokens": 9 * 64 + 1}, 10),
        ({"tokens": "0.64k"}, 10),
    ],
)
def test_a_warm_up_may_be_given_in_steps_tokens_or_a_fraction(warmup: dict[str, Any], steps: int) -> None:
    assert run_of(warmup=warmup) == pytest.approx([min(1.0, (step + 1) / steps) for step in range(40)])


def test_a_warm_up_in_tokens_counts_through_stages_of_different_sizes() -> None:
    plan = plan_of({"steps": 3}, {"steps": 9, "batch_size": 8}, schedule={"warmup": {"tokens": 3 * 64 + 2 * 128}})
    assert multipliers(plan) == pytest.approx([min(1.0, (step + 1) / 5) for step in range(12)])


def test_a_horizon_spans_the_schedule_whatever_the_run_takes() -> None:
    longer = run_of(shape="cosine", horizon={"steps": 80})
    assert longer == pytest.approx([cosine(step / 80) for step in range(40)])
    shorter = run_of(shape="linear", to=0.25, horizon={"tokens": 20 * 64})
    assert shorter == pytest.approx([falling(linear, 0, 20, 0.25, step) if step < 20 else 0.25 for step in range(40)])


ZERO_RATE = (
    "stages[{}]: the learning rate is 0 at {}: schedule.horizon ends at step 20. Write a larger horizon, or give the "
    'stage its own rate: lr = {{ shape = "linear" }}.'
)


@pytest.mark.parametrize("shape", ["linear", "cosine", "wsd"])
def test_stages_after_the_horizon_are_warned_about(shape: str) -> None:
    plan = plan_of({"steps": 25}, {"steps": 5}, {"steps": 5}, schedule={"shape": shape, "horizon": {"steps": 20}})
    assert [str(warning) for warning in plan.warnings] == [
        ZERO_RATE.format(0, "its last 5 steps"),
        ZERO_RATE.format(1, "all of its steps"),
        ZERO_RATE.format(2, "all of its steps"),
    ]
    assert multipliers(plan)[20:] == [0] * 15


@pytest.mark.parametrize(
    ("stage", "schedule"),
    [
        ({"lr": {"shape": "linear"}}, {"shape": "linear"}),
        ({}, {"shape": "linear", "to": 0.1}),
        ({}, {"shape": "constant"}),
    ],
)
def test_a_stage_after_the_horizon_that_has_a_rate_is_not(stage: dict[str, Any], schedule: dict[str, Any]) -> None:
    plan = plan_of({"steps": 20}, {"steps": 20, **stage}, schedule={**schedule, "horizon": {"steps": 20}})
    assert not plan.warnings
    assert min(multipliers(plan)) > 0


def test_a_stage_scales_the_runs_schedule_on_its_own_steps_only() -> None:
    plan = plan_of(
        {"steps": 10}, {"steps": 10, "lr": {"scale": 0.5}}, {"steps": 20}, schedule={"shape": "linear", "to": 0.0}
    )
    expected = [(1 - step / 40) * (0.5 if 10 <= step < 20 else 1) for step in range(40)]
    assert multipliers(plan) == pytest.approx(expected)


def test_a_scale_of_the_first_stage_counts_from_step_0() -> None:
    assert multipliers(plan_of({"steps": 2, "lr": {"scale": 0.5}}, {"steps": 2})) == [0.5, 0.5, 1.0, 1.0]


@pytest.mark.parametrize(
    ("shape", "form"),
    [("linear", linear), ("cosine", cosine), ("constant", lambda _: 1.0)],
    ids=["linear", "cosine", "constant"],
)
def test_a_stage_shape_replaces_the_runs_and_the_next_stage_rejoins_it(
    shape: str, form: Callable[[float], float]
) -> None:
    own = {"shape": shape, "scale": 0.3, **({} if shape == "constant" else {"to": 0.2})}
    plan = plan_of({"steps": 10}, {"steps": 10, "lr": own}, {"steps": 20}, schedule={"shape": "cosine", "to": 0.1})
    to = 1.0 if shape == "constant" else 0.2

    def expected(step: int) -> float:
        if 10 <= step < 20:
            return 0.3 * falling(form, 10, 20, to, step)
        return falling(cosine, 0, 40, 0.1, step)

    assert multipliers(plan) == pytest.approx([expected(step) for step in range(40)])


def test_a_stage_may_have_a_wsd_or_inverse_sqrt_of_its_own() -> None:
    wsd = {"shape": "wsd", "warmup": {"steps": 2}, "decay": {"tokens": 4 * 64}, "decay_shape": "1-sqrt", "to": 0.5}
    root = {"shape": "inverse-sqrt", "warmup": {"fraction": 0.4}, "scale": 2.0}
    plan = plan_of({"steps": 10, "lr": wsd}, {"steps": 10, "lr": root})
    first = [0.5, 1, 1, 1, 1, 1, *(falling(one_minus_sqrt, 6, 10, 0.5, step) for step in range(6, 10))]
    second = [2 * (step + 1) / 4 if step < 4 else 2 * math.sqrt(4 / (step + 1)) for step in range(10)]
    assert multipliers(plan) == pytest.approx([*first, *second])


def test_a_stage_may_warm_up_again_under_the_runs_schedule() -> None:
    plan = plan_of(
        {"steps": 10},
        {"steps": 30, "lr": {"scale": 0.5, "warmup": {"steps": 5}}},
        schedule={"shape": "wsd", "decay": {"steps": 28}, "to": 0.0},
    )

    def expected(step: int) -> float:
        run = 1.0 if step < 12 else falling(linear, 12, 40, 0.0, step)
        return run if step < 10 else run * 0.5 * min(1.0, (step - 9) / 5)

    assert multipliers(plan) == pytest.approx([expected(step) for step in range(40)])


def test_a_warm_up_again_as_long_as_its_stage_ends_with_it() -> None:
    plan = plan_of({"steps": 2}, {"steps": 4, "lr": {"warmup": {"fraction": 1.0}}}, {"steps": 2, "lr": {"scale": 3.0}})
    assert multipliers(plan) == pytest.approx([1, 1, 0.25, 0.5, 0.75, 1, 3, 3])


@pytest.mark.parametrize(
    ("stages", "tables", "what"),
    [
        (
            [{"steps": 10}],
            {"schedule": {"shape": "cosine", "warmup": {"steps": 11}}},
            "schedule: a warm-up of 11 steps is longer than the 10 steps there are. Shorten it.",
        ),
        (
            [{"steps": 10}],
            {"schedule": {"shape": "wsd", "warmup": {"steps": 6}, "decay": {"steps": 5}}},
            "schedule: a warm-up of 6 and a decay of 5 steps are longer than the 10 steps there are. Shorten it.",
        ),
        (
            [{"steps": 10}, {"steps": 3, "lr": {"warmup": {"steps": 4}}}],
            {},
            "stages[1].lr: a warm-up of 4 steps is longer than the 3 steps there are. Shorten it.",
        ),
    ],
)
def test_lengths_that_do_not_fit_are_refused(stages: list[dict[str, Any]], tables: dict[str, Any], what: str) -> None:
    with pytest.raises(PlanError) as caught:
        plan_of(*stages, **tables)
    assert str(caught.value) == what


shapes = st.one_of(
    st.just({"shape": "constant"}),
    st.fixed_dictionaries({"shape": st.sampled_from(["linear", "cosine"]), "to": st.sampled_from([0.0, 0.1, 0.5])}),
    st.fixed_dictionaries(
        {
            "shape": st.just("wsd"),
            "decay": st.fixed_dictionaries({"fraction": st.sampled_from([0.2, 0.3, 0.4])}),
            "decay_shape": st.sampled_from(["linear", "cosine"]),
            "to": st.sampled_from([0.0, 0.1]),
        }
    ),
)
lengths = st.lists(st.integers(50, 150), min_size=1, max_size=4)


@given(shapes, lengths, st.integers(25, 60))
def test_without_a_word_from_the_stages_the_learning_rate_is_continuous(
    shape: dict[str, Any], steps: list[int], warmup: int
) -> None:
    """No step changes it by more than the steepest slope there is, stage boundaries included."""
    stages = [{"steps": count, "seq_len": 8 * (number + 1)} for number, count in enumerate(steps)]
    found = multipliers(plan_of(*stages, schedule={**shape, "warmup": {"fraction": warmup / 100 * 0.5}}))
    shortest = min(0.125, 0.2) * sum(steps)
    assert found[0] <= 2 / shortest
    assert max(abs(after - before) for before, after in pairwise(found)) <= math.pi / 2 / shortest + 1e-9


@given(shapes, lengths, st.data())
def test_a_stages_learning_rate_changes_exactly_on_its_first_step(
    shape: dict[str, Any], steps: list[int], data: st.DataObject
) -> None:
    chosen = data.draw(st.integers(0, len(steps) - 1))
    stages: list[dict[str, Any]] = [{"steps": count} for count in steps]
    plain = multipliers(plan_of(*stages, schedule={**shape, "to": 0.5} if "to" in shape else shape))
    stages[chosen]["lr"] = {"scale": 0.25}
    scaled = multipliers(plan_of(*stages, schedule={**shape, "to": 0.5} if "to" in shape else shape))
    start, end = sum(steps[:chosen]), sum(steps[: chosen + 1])
    changed = [step for step, (one, other) in enumerate(zip(plain, scaled, strict=True)) if one != other]
    assert changed == list(range(start, end))
    assert [scaled[step] for step in changed] == pytest.approx([plain[step] / 4 for step in changed])


def momenta(*stages: dict[str, Any], **momentum: Any) -> list[float]:
    plan = plan_of(*stages, optimizer={"name": "muon", "momentum": momentum})
    assert plan.total_steps is not None
    return [plan.settings_at(step).momentum for step in range(plan.total_steps)]


def test_momentum_rises_from_the_optimizers_start() -> None:
    found = momenta({"steps": 400})
    assert found == pytest.approx([0.85 + 0.10 * min(1.0, step / 300) for step in range(400)])


def test_momentum_rises_again_where_the_optimizer_is_reset_and_nowhere_else() -> None:
    found = momenta({"steps": 6}, {"steps": 6}, {"steps": 6, "reset_optimizer": True}, start=0.5, end=0.9, steps=4)
    rise = [0.5, 0.6, 0.7, 0.8, 0.9, 0.9]
    assert found == pytest.approx([*rise, *[0.9] * 6, *rise])


def test_a_reset_in_the_middle_of_the_rise_begins_it_again() -> None:
    found = momenta({"steps": 2}, {"steps": 6, "reset_optimizer": True}, start=0.5, end=0.9, steps=4)
    assert found == pytest.approx([0.5, 0.6, 0.5, 0.6, 0.7, 0.8, 0.9, 0.9])


def test_momentum_without_a_rise_is_its_end() -> None:
    assert momenta({"steps": 3}, start=0.5, end=0.9, steps=0) == [0.9, 0.9, 0.9]


def test_every_group_of_parameters_has_its_own_peak() -> None:
    plan = plan_of(
        {"steps": 4}, optimizer={"lr": {"matrix": 0.02, "rest": 3e-4}}, schedule={"shape": "linear", "to": 0.0}
    )
    settings = plan.settings_at(2)
    assert settings.lr == {"matrix": 0.01, "embedding": 1.5e-4, "unembedding": 1.5e-4, "rest": 1.5e-4}
    assert settings.weight_decay == 0.1


def test_a_rate_made_for_adamw_is_low_for_muon() -> None:
    plan = plan_of({"steps": 10}, optimizer={"name": "muon", "lr": 3e-4})
    assert [str(warning) for warning in plan.warnings] == [
        "optimizer.lr.matrix: is not given, and 0.0003 is low for muon. Write lr = { matrix = 0.02, rest = 0.0003 }."
    ]
    assert not plan_of({"steps": 10}, optimizer={"name": "muon", "lr": {"matrix": 0.02, "rest": 3e-4}}).warnings

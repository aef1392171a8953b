"""Memory, time and cost of a plan's stages on devices that are not here."""

from dataclasses import replace
from typing import Any

import pytest

from tests.support.plans import plan_of
from trivium.config.engine import Parallel
from trivium.engine.devices import Device
from trivium.errors import ConfigError, PlanError, UsageError
from trivium.forecast.forecast import CONTEXT, UNUSABLE, changes, make_forecast
from trivium.forecast.layout import Layout, check_layout
from trivium.forecast.machine import Machine
from trivium.forecast.show import advice_lines, forecast_json, memory_rows, time_rows
from trivium.plan.make import make_plan
from trivium.plan.plan import Plan
from trivium.run.decisions import BatchResized

ROOMY = Machine(2, Device("box", 10**12, 1e12, 2.0))
MODEL = {"layers": 8, "width": 64, "heads": 4, "ffn": 128, "vocab": 512}


def planned(*stages: dict[str, Any], **engine: Any) -> Plan:
    return plan_of(*(stages or ({"steps": 100},)), model=MODEL, engine=engine)


def test_stages_are_measured_and_timed() -> None:
    plan = planned({"steps": 100, "seq_len": 128}, {"steps": 10, "seq_len": 1024, "kl": {"beta": 0.1}})
    forecast = make_forecast(plan, ROOMY, mfu=0.5)
    short, long = forecast.stages
    model = plan.model
    assert model is not None
    assert short.parts["weights"] == pytest.approx(4 * model.parameters / 2, rel=0.01)
    assert short.parts["reference"] == 0 < long.parts["reference"]
    assert short.parts["activations"] < long.parts["activations"]
    assert short.memory == sum(short.parts.values()) + CONTEXT + round(UNUSABLE * sum(short.parts.values()))
    assert forecast.fits
    assert forecast.tightest is long
    # 100 steps of 4 rows of 128 tokens, at half of two devices' 1e12 FLOP/s.
    seconds = 100 * 4 * 128 * model.flops(128) / 1e12
    assert short.seconds == pytest.approx(seconds)
    assert long.flops_per_token == model.flops(1024) + model.forward_flops(1024)
    assert forecast.cost(3600) == 2 * 2.0
    assert forecast.seconds == pytest.approx(seconds + 10 * 4 * 1024 * long.flops_per_token / 1e12)


def test_a_size_that_changes_is_measured_at_its_largest_and_timed_by_tokens() -> None:
    ramp = {"steps": 20, "seq_len": 128, "batch_size": {"from": 2, "to": 8, "over": 2048, "by": 2}}
    plan = planned(ramp, {"steps": 20, "seq_len": 128, "batch_size": 8})
    assert plan.model is not None
    layout = Layout.of(plan, plan.config, 2)
    assert [layout.step(stage).rows for stage in plan.stages] == [4, 4]
    tokens = plan.tokens_before(20)
    assert tokens < 20 * 8 * 128
    forecast = make_forecast(plan, ROOMY, mfu=0.5)
    assert forecast.stages[0].seconds == pytest.approx(tokens * plan.model.flops(128) / 1e12)
    assert forecast.stages[0].parts == forecast.stages[1].parts
    decided = make_plan(plan.config, decisions=[BatchResized(step=25, size=6)])
    three = Layout.of(decided, plan.config, 3)  # 8 rows of steps taken need no ranks
    assert three.step(decided.stages[1]).rows == 2


def test_what_would_make_a_stage_fit_is_measured_too() -> None:
    plan = planned({"steps": 10, "seq_len": 512}, parallel={"replicate": 2})
    roomy = make_forecast(plan, ROOMY)
    tight = Machine(2, replace(ROOMY.device, memory=round(CONTEXT + 0.5 * (roomy.tightest.memory - CONTEXT))))
    forecast = make_forecast(plan, tight)
    assert not forecast.fits
    assert [advice.change for advice in forecast.advice] == ['stages.stage-0.engine.recompute = "selective"']
    assert forecast.advice[0].memory < tight.device.memory < roomy.tightest.memory
    plain = forecast_json(forecast)
    assert advice_lines(plain)[0] == "stage-0 does not fit. Each change with those before it, but one layout:"
    assert memory_rows(plain)[1][-1] == ["fits", "no"]
    assert time_rows(plain)[1][0][0] == "stage-0"


def test_where_nothing_is_enough_every_change_was_tried() -> None:
    plan = planned({"steps": 10, "engine": {"recompute": "selective"}}, parallel={"replicate": 2})
    forecast = make_forecast(plan, Machine(2, replace(ROOMY.device, memory=CONTEXT)))
    assert [advice.change for advice in forecast.advice] == [
        'stages.stage-0.engine.recompute = "full"',
        "stages.stage-0.engine.micro_batch_size = 1",
        "engine.parallel = { tensor = 1 }",
        "engine.parallel = { tensor = 2 }",
    ]
    assert "None makes it fit in 2.0 GB" in advice_lines(forecast_json(forecast))[-1]


def test_rows_that_fewer_readers_have_more_of_are_read_one_a_pass() -> None:
    stages = [{"steps": 10, "batch_size": 2, "seq_len": size} for size in (128, 512)]
    plan = planned(*stages, parallel={"shard": 2})
    found = list(changes(plan, plan.stages[1], 2))
    assert [change for change, _, _ in found] == [
        'stages.stage-1.engine.recompute = "selective"',
        'stages.stage-1.engine.recompute = "full"',
        "engine.parallel = { tensor = 2 }, stages.stage-1.engine.micro_batch_size = 1",
    ]
    _, config, stage = found[-1]
    assert config.engine.parallel == Parallel(tensor=2)
    assert (stage.config.engine.recompute, stage.config.engine.micro_batch_size) == ("full", 1)


def test_long_rows_may_be_shared_before_matrices_are_split() -> None:
    stage = {"steps": 10, "batch_size": 8, "seq_len": 16_384, "engine": {"recompute": "full", "micro_batch_size": 1}}
    plan = planned({"steps": 10, "batch_size": 8}, stage)
    found = [change for change, _, _ in changes(plan, plan.stages[1], 8)]
    sizes, tensors = [2, 4], [2, 4]  # not 8: 2,048 slots are short for a rank
    contexts = [f"stages.stage-1.engine.context = {size}" for size in sizes]
    assert found == [*contexts, *(f"engine.parallel = {{ tensor = {size} }}" for size in tensors)]
    by_heads = planned({"steps": 10, "batch_size": 8}, stage, parallel={"context": 2, "context_method": "ulysses"})
    found = [change for change, _, _ in changes(by_heads, by_heads.stages[1], 8)]
    assert found == ["stages.stage-1.engine.context = 4", "engine.parallel = { context = 2, tensor = 2 }"]


def test_a_stage_whose_ranks_share_rows_is_measured_and_shown_by_its_layout() -> None:
    stages = [{"steps": 10, "batch_size": 2, "seq_len": 2048, "engine": {"context": size}} for size in (1, 2)]
    forecast = make_forecast(planned(*stages), ROOMY)
    apart, shared = forecast.stages
    assert shared.parts["activations"] < 1.2 * apart.parts["activations"]  # of two rows' halves, and not of two rows
    assert shared.parts["weights"] == apart.parts["weights"]
    plain = forecast_json(forecast)
    assert [stage["layout"]["context"] for stage in plain["stages"]] == [1, 2]
    assert memory_rows(plain)[1][0] == ["ranks that share a row", "1", "2"]


def test_first_middle_and_last_rank_take_a_step() -> None:
    mesh, found = check_layout(planned({"steps": 1, "batch_size": 16}, parallel={"tensor": 2}), 32)
    assert (mesh.shard, mesh.tensor) == (16, 2)
    assert list(found) == [0, 16, 31]
    assert all(parts["loss"] > 0 for peaks in found.values() for parts in peaks)


def test_what_cannot_be_told_is_refused() -> None:
    with pytest.raises(PlanError, match=r"stages\[0\].batch_size: is 4 rows, which 8 ranks cannot share evenly"):
        make_forecast(planned(), replace(ROOMY, count=8))
    with pytest.raises(ConfigError, match=r"replicate 1 x shard 3 x tensor 1 is 3, but there are 2 devices"):
        make_forecast(planned(parallel={"shard": 3}), ROOMY)
    with pytest.raises(ConfigError, match=r'engine.name: is "jax", and only steps of torch are measured'):
        make_forecast(planned(name="jax"), ROOMY)
    with pytest.raises(PlanError, match="the model's shape is not known"):
        make_forecast(plan_of({"steps": 1}), ROOMY)
    with pytest.raises(UsageError, match="--mfu: is 40, and is the fraction of the peak that is used"):
        make_forecast(planned(), ROOMY, mfu=40)

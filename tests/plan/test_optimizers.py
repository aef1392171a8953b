"""The optimizer of each stage: what it keeps, what it changes, where its state starts fresh, and what the plan says."""

import io
import math
from itertools import pairwise
from typing import Any

import pytest
from rich.console import Console

from tests.support.plans import plan_of
from trivium.errors import PlanError
from trivium.plan.export import plan_json
from trivium.plan.plan import Plan
from trivium.plan.show import show_plan

MUON = {"name": "muon", "lr": {"matrix": 0.02, "rest": 3e-4}}
RUN = {"lr": 1e-3, "grad_clip": 1.0}


def planned(*tables: dict[str, Any] | None, **run: Any) -> Plan:
    """A stage of ten steps for each table."""
    stages = ({"steps": 10} | ({} if table is None else {"optimizer": table}) for table in tables)
    return plan_of(*stages, optimizer=RUN | run)


def values(plan: Plan, key: str) -> list[Any]:
    return [getattr(each.settings, key) for each in plan.optimizers]


def test_a_key_changes_for_its_stage_alone() -> None:
    plan = planned(None, {"grad_clip": 0.2, "weight_decay": 0.0}, None)
    assert values(plan, "grad_clip") == [1.0, 0.2, 1.0]
    assert [plan.settings_at(step).weight_decay for step in (9, 10, 19, 20)] == [0.1, 0.0, 0.0, 0.1]
    assert [each.is_fresh for each in plan.optimizers] == [False] * 3


def test_a_name_counts_until_another_is_named_and_starts_with_a_fresh_state() -> None:
    plan = planned(None, MUON, {"grad_clip": 0.2}, None, {"name": "adamw"})
    assert values(plan, "name") == ["adamw", "muon", "muon", "muon", "adamw"]
    assert values(plan, "grad_clip") == [1.0, 1.0, 0.2, 1.0, 1.0]
    assert [plan.settings_at(step).lr["matrix"] for step in (9, 10, 25, 35, 45)] == [1e-3, 0.02, 0.02, 0.02, 1e-3]
    assert [each.is_fresh for each in plan.optimizers] == [False, True, False, False, True]
    assert [plan.optimizer_before(step).settings.name for step in (0, 10, 11, 40, 41)] == [
        "adamw", "adamw", "muon", "muon", "adamw",
    ]  # fmt: skip


def test_muons_momentum_warms_up_from_the_stage_that_names_it() -> None:
    plan = planned(None, {**MUON, "momentum": {"start": 0.5, "end": 1 - 2**-4, "steps": 4}}, None)
    assert [plan.settings_at(step).momentum for step in (10, 12, 14, 25)] == [0.5, 0.71875, 0.9375, 0.9375]


def test_ademamix_warms_up_from_its_start_or_reset() -> None:
    keys = {"name": "ademamix", "lr": 1e-3, "alpha": 8.0, "beta3": 0.999, "alpha_warmup": 4, "beta3_warmup": 8}
    plan = planned(None, keys, {"alpha": 2.0})
    assert plan.settings_at(0).alpha == 0.0
    assert [plan.settings_at(step).alpha for step in (10, 11, 13, 14, 19, 20)] == [2.0, 4.0, 8.0, 8.0, 8.0, 2.0]
    half_lives = [math.log(0.5) / math.log(plan.settings_at(step).beta3) for step in range(10, 20)]
    gains = [later - earlier for earlier, later in pairwise(half_lives)]
    assert gains[:6] == pytest.approx([gains[0]] * 6, rel=1e-6)
    assert [plan.settings_at(step).beta3 for step in (17, 25)] == [0.999, 0.999]


def test_the_future_is_open_and_the_past_is_named_by_its_key() -> None:
    before = planned(None, {"grad_clip": 0.2}, None)
    after = planned(None, {"grad_clip": 0.2}, {"betas": [0.9, 0.99]})
    assert before.fingerprint(20) == after.fingerprint(20)
    assert before.fingerprint(21) != after.fingerprint(21)
    written = planned({"grad_clip": 1.0}, {"grad_clip": 0.2}, None, grad_clip=0.5)
    assert written.fingerprint(20) == before.fingerprint(20)
    assert before.record(21)["stages[1].optimizer.grad_clip"] == 0.2
    assert planned(None, MUON).record(11)["stages[1].reset_optimizer"] is True


def test_the_plan_tells_changes_and_fresh_states() -> None:
    plan, screen = planned(None, MUON, {"grad_clip": 0.2, "skip": {"deviations": 4.0}}), io.StringIO()
    show_plan(plan, Console(file=screen, width=200))
    told = screen.getvalue()
    assert "stage-1: muon with a fresh state, optimizer.lr { matrix = 0.02, rest = 0.0003 }\n" in told
    assert "optimizer.grad_clip 0.2, optimizer.skip { deviations = 4.0, steps = 128 }\n" in told
    kept = plan_json(plan)["stages"]
    assert [stage["optimizer"]["fresh"] for stage in kept] == [False, True, False]
    assert [stage["peak_lr"]["matrix"] for stage in kept] == [1e-3, 0.02, 0.02]


def test_a_low_rate_of_muon_is_told_where_it_is_written() -> None:
    (warning,) = planned(None, {"name": "muon", "lr": 3e-4}).warnings
    assert str(warning).startswith("stages[1].optimizer.lr.matrix: is not given, and 0.0003 is low for muon.")


def test_a_package_that_is_not_installed_is_refused_before_the_first_step() -> None:
    with pytest.raises(PlanError, match=r"stages\[1\]\.optimizer\.name: is \"their-package:soap\", which no installed"):
        planned(None, {"name": "their-package:soap", "lr": 1e-3})

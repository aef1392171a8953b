"""Learning rates by group of parameters, and those that are scaled by the model's width."""

import io
from typing import Any

import pytest
from rich.console import Console

from tests.support.plans import plan_of
from trivium.config.load import validate
from trivium.plan.plan import Plan
from trivium.plan.show import show_plan

MUON = {"name": "muon", "lr": {"matrix": 0.02, "embedding": 0.2, "unembedding": 0.004, "rest": 0.01}}
WIDE = {"layers": 1, "width": 1536, "vocab": 512}
SCALED = 0.2 * (1536 / 768) ** -0.5, 0.004 * (1536 / 768) ** -0.5


def planned(model: dict[str, Any], optimizer: dict[str, Any]) -> Plan:
    return plan_of({"steps": 10}, model=model, optimizer=optimizer)


def shown(plan: Plan) -> str:
    text = io.StringIO()
    show_plan(plan, Console(file=text, width=120))
    return text.getvalue()


def test_embedding_and_unembedding_are_scaled_by_the_root_of_768_over_the_width() -> None:
    plan = planned(WIDE, {**MUON, "lr_scaling": "width"})
    expected = {"matrix": 0.02, "embedding": SCALED[0], "unembedding": SCALED[1], "rest": 0.01}
    assert plan.peak_lr == pytest.approx(expected, rel=1e-12)
    assert plan.settings_at(3).lr == plan.peak_lr
    told = "embedding 0.141 (scaled by width), unembedding 0.00283 (scaled by width)"
    assert f"\nlearning rates: matrix 0.02, {told}, rest 0.01\n" in shown(plan)


def test_at_a_width_of_768_and_without_the_key_rates_are_as_given() -> None:
    given = planned(WIDE, MUON)
    assert given.peak_lr == MUON["lr"]
    assert "learning rates:" not in shown(given)
    assert planned({**WIDE, "width": 768}, {**MUON, "lr_scaling": "width"}).peak_lr == MUON["lr"]


def test_the_record_has_the_rates_that_were_used_whichever_way_they_were_written() -> None:
    scaled = planned(WIDE, {**MUON, "lr_scaling": "width"})
    rates = {**scaled.peak_lr}
    assert scaled.record(5)["optimizer.lr.embedding"] == rates["embedding"]
    assert scaled.fingerprint(5) == planned(WIDE, {"name": "muon", "lr": rates}).fingerprint(5)
    assert scaled.fingerprint(5) != planned(WIDE, MUON).fingerprint(5)


def test_rates_that_need_a_width_are_not_known_without_a_model() -> None:
    without_vocabulary = {"layers": 1, "width": 1536}
    plan = planned(without_vocabulary, {**MUON, "lr_scaling": "width"})
    assert plan.model is None
    assert plan.peak_lr == {"matrix": 0.02, "rest": 0.01}
    assert "learning rates:" not in shown(plan)


def test_a_scaling_that_is_not_known_is_refused() -> None:
    raw = {"run": {"name": "x"}, "optimizer": {"lr_scaling": "depth"}}
    with pytest.raises(Exception, match=r'optimizer\.lr_scaling: is "depth"'):
        validate(raw, "run.toml")

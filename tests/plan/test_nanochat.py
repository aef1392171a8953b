"""The config on the page about nanochat, beside the plain formulas of its midtraining script."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from trivium.config.load import validate
from trivium.plan.make import make_plan
from trivium.plan.plan import Plan

PAGE = Path(__file__).parents[2] / "docs" / "nanochat.md"
STEPS = 1000


def shown() -> list[dict[str, Any]]:
    """The page's configs: midtraining, and the tables of today's fine-tuning."""
    blocks = re.findall(r"^```toml\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return [tomllib.loads(block) for block in blocks]


def planned(width: int = 1280) -> Plan:
    """The page's first config, for a model of its own instead of a checkpoint, and of a length that is known."""
    raw, _ = shown()
    raw["model"] = {"layers": 2, "width": width, "vocab": 65_536}
    raw["sources"] = {name: {"kind": "tokens", "path": f"nowhere/{name}"} for name in raw["sources"]}
    raw["stages"][0] |= {"mixture": {"mid": 1.0}, "steps": STEPS}
    for key in ("epochs", "sources", "loss_on"):
        del raw["stages"][0][key]
    return make_plan(validate(raw, "run.toml")[0])


def multiplier(progress: float) -> float:
    """Theirs: 1 for four fifths, then linear to 0."""
    return 1.0 if progress < 0.8 else 1 - (progress - 0.8) / 0.2


def momentum(step: int) -> float:
    """Theirs: from 0.85 to 0.95 over 300 steps."""
    part = min(step / 300, 1)
    return (1 - part) * 0.85 + part * 0.95


def test_their_schedule_and_momentum_are_the_plans_at_every_step() -> None:
    plan, scale = planned(width=1280), (1280 / 768) ** -0.5
    rates = {"matrix": 0.02, "embedding": 0.2 * scale, "unembedding": 0.004 * scale}
    for step in range(STEPS):
        now = plan.settings_at(step)
        assert now.lr_multiplier == pytest.approx(multiplier(step / STEPS), abs=1e-9)
        assert now.momentum == pytest.approx(momentum(step), abs=1e-9)
        ours = {group: now.lr[group] for group in rates}
        assert ours == pytest.approx(
            {group: rate * multiplier(step / STEPS) for group, rate in rates.items()}, abs=1e-9
        )


def test_the_page_has_their_optimizer() -> None:
    plan = planned()
    optimizer = plan.config.optimizer
    assert (optimizer.name, optimizer.betas, optimizer.eps, optimizer.weight_decay) == ("muon", (0.8, 0.95), 1e-10, 0.0)
    (stage,) = plan.stages
    assert stage.batch_size * stage.seq_len == 524_288
    assert (plan.config.evaluate.every, plan.config.evaluate.at_start) == (150, True)


def test_todays_fine_tuning_is_one_source_of_repeated_tasks_with_the_same_adam_and_momentum() -> None:
    mid, sft = shown()
    raw: dict[str, Any] = {**mid, **sft, "sources": {**mid["sources"], **sft["sources"]}}
    config = validate(raw, "run.toml")[0]
    optimizer = config.optimizer
    assert (optimizer.betas, optimizer.eps) == ((0.8, 0.95), 1e-10)
    assert optimizer.momentum == validate(mid, "run.toml")[0].optimizer.momentum
    tasks = sft["sources"]["sft"]["tasks"]
    assert tasks == ["smoltalk", {"task": "mmlu", "repeat": 3}, {"task": "gsm8k", "repeat": 4}]
    assert config.stages[0].sources == ("sft",)

"""One dial: what `model.depth` chooses, by nanochat's rules, and what it leaves alone."""

import io
from typing import Any

import pytest
from rich.console import Console

from tests.support.plans import plan_of
from trivium.errors import PlanError
from trivium.plan.export import plan_json
from trivium.plan.plan import Plan
from trivium.plan.show import show_plan

DEFAULTS = {"mixture": {"web": 1.0}, "seq_len": 2048}


def dialed(depth: int, *stages: dict[str, Any], **tables: Any) -> Plan:
    model = {"depth": depth, "vocab": 65_536} | tables.pop("model", {})
    return plan_of(*(stages or ({},)), **{"model": model, "defaults": DEFAULTS, **tables})


@pytest.mark.parametrize(
    ("depth", "width", "heads", "batch", "tokens"),
    [
        (12, 768, 6, 2**19, 12 * (12 * 12 * 768**2 + 65_536 * 768)),
        (13, 896, 7, 2**19, None),  # 832 is not a multiple of 128
        (24, 1536, 12, 2**20, 12 * (24 * 12 * 1536**2 + 65_536 * 1536)),
        (4, 256, 2, 2**18, None),
    ],
)
def test_a_depth_is_a_shape_a_batch_and_a_length(
    depth: int, width: int, heads: int, batch: int, tokens: int | None
) -> None:
    plan = dialed(depth)
    assert plan.model is not None
    assert (plan.model.layers, plan.model.width, plan.model.heads) == (depth, width, heads)
    assert plan.stages[0].batch_size * plan.stages[0].seq_len == batch
    if tokens is not None:
        assert plan.stages[0].config.budget_tokens == tokens


def test_rates_grow_with_the_root_of_the_batch_and_decay_falls_with_the_length() -> None:
    base, deep = dialed(12), dialed(24)
    assert base.peak_lr == {"matrix": 0.02, "embedding": 0.3, "unembedding": 0.008, "rest": 0.008}
    assert base.config.optimizer.weight_decay == 0.28
    assert deep.peak_lr["matrix"] == pytest.approx(0.02 * 2**0.5, rel=1e-3)
    assert deep.peak_lr["embedding"] == pytest.approx(0.3, rel=1e-3)  # over the root of twice the width
    lengths = [plan.stages[0].config.budget_tokens or 0 for plan in (base, deep)]
    expected = 0.28 * 2**0.5 * lengths[0] / lengths[1]
    assert deep.config.optimizer.weight_decay == pytest.approx(expected, rel=1e-3)


def test_keys_that_are_written_win() -> None:
    plan = dialed(
        12,
        {"steps": 10, "batch_size": 4},
        model={"width": 512, "heads": 4},
        optimizer={"name": "adamw", "lr": 1e-3},
    )
    assert plan.model is not None
    assert (plan.model.width, plan.model.heads, plan.total_steps) == (512, 4, 10)
    assert plan.peak_lr["matrix"] == 1e-3
    assert plan.stages[0].batch_size == 4
    assert plan.inherited.taken == {"model.layers": 12}
    muon = dialed(12, optimizer={"lr": 0.01})
    assert set(muon.peak_lr.values()) == {0.01}
    assert muon.config.optimizer.name == "muon"


def test_one_stage_without_a_length_gets_it_and_the_others_keep_theirs() -> None:
    plan = dialed(12, {"steps": 5}, {}, {"tokens": "2M"})
    assert [stage.steps for stage in plan.stages] == [5, 3096, 4]


def test_rows_of_any_length_fill_a_batch_whole() -> None:
    plan = dialed(12, {"steps": 1, "seq_len": 1000}, {"steps": 1, "seq_len": 1500})
    assert [stage.batch_size * stage.seq_len for stage in plan.stages] == [522_000, 522_000]


def test_the_plan_tells_what_the_dial_chose() -> None:
    plan, screen = dialed(12), io.StringIO()
    show_plan(plan, Console(file=screen, width=200))
    assert "from model.depth = 12: model.layers = 12, model.width = 768, model.heads = 6, defaults.batch_tokens" in (
        screen.getvalue()
    )
    told = plan_json(plan)["inherited"]
    assert told["from"] == "model.depth = 12"
    assert told["keys"]["optimizer.lr"] == {"matrix": 0.02, "embedding": 0.3, "unembedding": 0.008, "rest": 0.008}


def test_what_was_chosen_is_chosen_again_from_the_config_that_a_run_keeps() -> None:
    plan = dialed(12)
    again = plan_of(
        *plan.config.model_dump(mode="json", exclude_unset=True)["stages"],
        **{
            key: table
            for key, table in plan.config.model_dump(mode="json", exclude_unset=True).items()
            if key in ("model", "defaults", "optimizer")
        },
    )
    assert again.fingerprint(10) == plan.fingerprint(10)


def test_a_vocabulary_that_is_not_known_is_asked_for() -> None:
    with pytest.raises(PlanError, match=r"model\.vocab: is missing"):
        plan_of({}, model={"depth": 12}, defaults=DEFAULTS)

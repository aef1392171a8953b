"""A midtraining takes from its base run what its own config does not say, and the plan shows it."""

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.support.batches import TINY
from tests.support.plans import config_of
from trivium.config.schema import Config
from trivium.errors import PlanError
from trivium.model.folder import write_spec
from trivium.model.huggingface import write_config
from trivium.model.spec import RopeSpec
from trivium.plan.export import plan_json
from trivium.plan.make import make_plan
from trivium.plan.plan import Plan
from trivium.plan.show import show_plan
from trivium.run.folder import RunFolder

SPEC = replace(TINY, vocab=266)
MUON = {"name": "muon", "lr": {"matrix": 0.02, "rest": 0.004}, "grad_clip": 1.0}


def keep(folder: Path, config: Config, step: int = 10) -> Path:
    """A run's folder with a checkpoint of which the state alone is there."""
    plan = make_plan(config)
    run = RunFolder(folder)
    run.fresh_draft(step)
    (run.draft_path(step) / "engine").mkdir()
    trained = plan.stage_at(step - 1).rope or SPEC.rope
    write_spec(run.draft_path(step) / "engine", replace(SPEC, rope=trained))
    raw = config.model_dump(mode="json", exclude_none=True, exclude_unset=True)
    stage = plan.stage_at(min(step, (plan.total_steps or 1) - 1)).index
    run.commit(step, {"config": raw, "stage": stage, "loader": {"record": plan.record(step)}}, {})
    return folder


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """Two stages, the second with other rows and rotary positions."""
    stages: list[dict[str, Any]] = [
        {"steps": 6},
        {"steps": 4, "seq_len": 32, "batch_tokens": 96, "rope": {"theta": 500_000.0}},
    ]
    tables = {"optimizer": MUON, "tokenizer": {"kind": "bytes"}, "engine": {"micro_batch_size": 2}}
    return keep(tmp_path / "base", config_of(stages, **tables))


def midtraining(base: Path, *stages: dict[str, Any], **tables: Any) -> Plan:
    model = {"init": str(base), **tables.pop("model", {})}
    tables = {"defaults": {"mixture": {"web": 1.0}}, **tables}
    return make_plan(config_of(list(stages) or [{"steps": 5}], model=model, **tables))


def test_what_is_not_said_is_the_base_runs_last_stages(base: Path) -> None:
    plan = midtraining(base)
    (stage,) = plan.stages
    assert (stage.seq_len, stage.batch_size) == (32, 3)
    assert plan.peak_lr == {"matrix": 0.02, "embedding": 0.004, "unembedding": 0.004, "rest": 0.004}
    assert plan.config.optimizer.grad_clip == 1.0
    assert plan.config.tokenizer is not None
    assert stage.rope is not None
    assert stage.rope.theta == 500_000
    assert plan.config.engine.micro_batch_size == 2


def test_what_is_said_stays_and_a_checkpoint_within_a_stage_has_that_stages(base: Path) -> None:
    config = Config.model_validate(RunFolder(base).checkpoints()[0].state()["config"])
    keep(base, config, step=6)
    said = {"steps": 5, "seq_len": 8}, {"steps": 5, "batch_size": 7}
    plan = midtraining(base, *said, model={"init_step": 6}, optimizer={"lr": {"rest": 1e-3}})
    assert [(stage.seq_len, stage.batch_size) for stage in plan.stages] == [(8, 4), (16, 7)]
    assert [stage.rope for stage in plan.stages] == [RopeSpec(), RopeSpec()]
    assert plan.peak_lr["matrix"] == 1e-3
    assert plan.config.optimizer.name == "muon"


def test_rates_of_one_optimizer_are_not_taken_for_another(base: Path) -> None:
    plan = midtraining(base, optimizer={"name": "adamw"})
    assert plan.config.optimizer.name == "adamw"
    assert plan.peak_lr["matrix"] == 3e-4
    assert not [key for key in plan.inherited.taken if key.startswith("optimizer")]


def test_passes_with_more_rows_than_the_bases_are_warned_about(base: Path) -> None:
    assert midtraining(base, engine={"micro_batch_size": 2}).warnings == ()
    (warning,) = midtraining(base, engine={"micro_batch_size": 3}).warnings
    assert str(warning) == (
        f"engine.micro_batch_size: is 3, and {base} at step 10 was trained with 2: "
        "it may need more memory than there is. Write 2 or less, or leave it out."
    )


def test_the_plan_shows_what_was_inherited(base: Path) -> None:
    plan = midtraining(base, {"steps": 5, "seq_len": 8})
    shown = io.StringIO()
    show_plan(plan, Console(file=shown, width=400))
    taken = (
        f'from {base} at step 10: tokenizer = {{ kind = "bytes" }}, defaults.batch_size = 3, '
        'optimizer.name = "muon", '
        "optimizer.lr = { matrix = 0.02, rest = 0.004 }, optimizer.grad_clip = 1.0, engine.micro_batch_size = 2."
    )
    assert taken in shown.getvalue()
    assert plan_json(plan)["inherited"] == {
        "from": f"{base} at step 10",
        "keys": {
            "tokenizer": {"kind": "bytes"},
            "defaults.batch_size": 3,
            "optimizer.name": "muon",
            "optimizer.lr": {"matrix": 0.02, "rest": 0.004},
            "optimizer.grad_clip": 1.0,
            "engine.micro_batch_size": 2,
        },
    }


def test_a_base_that_is_not_there_yet_is_a_gap_of_the_plan(tmp_path: Path) -> None:
    plan = midtraining(tmp_path / "base")
    assert str(plan.gaps[0]) == (
        f"model.init: {tmp_path / 'base'}: has no checkpoint: what this run takes from it is not known."
    )


def test_momentum_warms_up_again_unless_the_optimizer_starts_warm(base: Path) -> None:
    fresh, warm = midtraining(base), midtraining(base, model={"init_optimizer": True})
    assert (fresh.momentum.at(0), warm.momentum.at(0)) == (0.85, 0.95)
    assert fresh.fingerprint(1) != warm.fingerprint(1)


def test_the_state_of_another_optimizer_is_refused(base: Path, tmp_path: Path) -> None:
    with pytest.raises(PlanError) as caught:
        midtraining(base, model={"init_optimizer": True}, optimizer={"name": "adamw"})
    assert str(caught.value) == (
        f"model.init_optimizer: {base} at step 10 was trained with muon, and this run is with adamw. "
        'Leave it out, or write optimizer.name = "muon".'
    )
    with pytest.raises(PlanError) as caught:
        midtraining(base, model={"init_optimizer": True}, engine={"name": "jax"})
    assert str(caught.value) == (
        f"model.init_optimizer: {base} at step 10 was trained with torch, and this run is with jax. "
        'Leave it out, or write engine.name = "torch".'
    )
    exported = tmp_path / "exported"
    exported.mkdir()
    write_config(exported, SPEC, SPEC.rope, seq_len=64)
    with pytest.raises(PlanError) as caught:
        midtraining(exported, model={"init_optimizer": True})
    what = "is a Hugging Face folder, which has no optimizer state. Leave it out."
    assert str(caught.value) == f"model.init_optimizer: {exported} {what}"


def test_a_hugging_face_folder_brings_its_tokenizer(tmp_path: Path) -> None:
    write_config(tmp_path, SPEC, SPEC.rope, seq_len=64)
    (tmp_path / "tokenizer.json").write_text("{}")
    plan = midtraining(tmp_path)
    assert plan.config.tokenizer is not None
    assert plan.config.tokenizer.path == str(tmp_path)


def test_what_the_base_stretched_is_inherited_with_its_scaling(tmp_path: Path) -> None:
    stages: list[dict[str, Any]] = [
        {"steps": 6},
        {"steps": 4, "seq_len": 64, "rope": {"scaling": "yarn", "factor": 4.0}},
    ]
    base = keep(tmp_path / "base", config_of(stages, tokenizer={"kind": "bytes"}))
    plan = midtraining(base)
    assert plan.stages[0].rope is not None
    assert plan.stages[0].rope.original_seq_len == 16
    assert plan.stages[0].rope == make_plan(config_of(stages)).stages[1].rope

"""Runs with models of transformers: killed at any point, and from folders of either family."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.engine.torch.transformers.families import SIZES
from tests.support.training import FOUR_STAGES, write_sources
from trivium.config.load import load_config
from trivium.engine.base import EngineSettings
from trivium.engine.torch.engine import TorchEngine
from trivium.errors import PlanError
from trivium.model.foreign import keys_spec
from trivium.plan.make import make_plan

ROOT = Path(__file__).parents[2]
EXPERTS = "{ num_experts = 4, num_experts_per_tok = 2, router_aux_loss_coef = 0.02 }"
OLMOE = ["model.family=olmoe", f"model.options={EXPERTS}"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with sources and a config of four stages."""
    monkeypatch.chdir(tmp_path)
    write_sources(tmp_path)
    (tmp_path / "run.toml").write_text(FOUR_STAGES)
    return tmp_path


@pytest.mark.slow
def test_a_run_killed_anywhere_ends_bit_for_bit_as_one_that_was_not(folder: Path) -> None:
    command = [sys.executable, "-m", "tests.train.chaos", str(folder), "5", "7", *OLMOE]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout.splitlines()[-1])
    assert found["kills"] == 5
    assert found["killed"] == found["calm"]


def test_a_plan_counts_what_our_own_formula_finds_of_the_same_shape(folder: Path) -> None:
    sizes = ["model.ffn=64", "model.kv_heads=1"]
    ours = make_plan(load_config("run.toml", sizes)).model
    theirs = make_plan(load_config("run.toml", [*sizes, "model.family=llama"])).model
    assert ours is not None
    assert theirs is not None
    assert theirs.foreign is not None
    assert theirs.parameters == ours.parameters
    assert theirs.matrix_parameters == ours.matrix_parameters
    assert theirs.flops(64) == ours.flops(64)


def test_rotary_positions_of_the_model_and_of_stages_reach_transformers_config(folder: Path) -> None:
    plan = make_plan(load_config("run.toml", ["model.family=llama", "model.rope={ theta = 700.0 }"]))
    assert plan.model is not None
    assert plan.model.foreign is not None
    assert plan.model.foreign.table["rope_parameters"]["rope_theta"] == 700.0
    dropout = "{ attn_pdrop = 0.0, resid_pdrop = 0.0, embd_pdrop = 0.0, summary_first_dropout = 0.0 }"
    with pytest.raises(PlanError, match=r'rope: cannot be set: the family "gpt2" has no rope_parameters'):
        make_plan(load_config("run.toml", ["model.family=gpt2", f"model.options={dropout}"]))
    sliding = "model.rope={ theta = 700.0, sliding = { theta = 900.0 } }"
    with pytest.raises(
        PlanError, match=r"model\.rope\.sliding: is given, but sliding layers of a model of transformers"
    ):
        make_plan(load_config("run.toml", ["model.family=olmo3", sliding]))


def test_a_folder_of_a_family_that_the_decoder_lacks_is_transformers(folder: Path) -> None:
    spec = keys_spec("phi3", {**SIZES, "vocab": 512}, {"pad_token_id": None})
    TorchEngine(EngineSettings(spec)).export(folder / "phi3")
    plan = make_plan(load_config("run.toml", ["model={ init = 'phi3' }"]))
    assert plan.model is not None
    assert plan.model.foreign is not None
    assert plan.model.foreign.family == "phi3"
    with pytest.raises(PlanError, match=r'model\.family: is "olmo3", but phi3 has a model of the family phi3'):
        make_plan(load_config("run.toml", ["model={ init = 'phi3', family = 'olmo3' }"]))
    with pytest.raises(PlanError, match="which the decoder lacks"):
        make_plan(load_config("run.toml", ["model={ init = 'phi3', family = 'trivium' }"]))


def test_what_a_model_cannot_do_is_refused_by_the_plan(folder: Path) -> None:
    for changes, said in {
        ("model.family=llama", "engine.parallel.tensor=3"): (
            "is 3, which does not divide the model's heads 2, kv_heads 2, ffn 128, vocab 512. Lower it."
        ),
        ("model.family=olmoe", "engine.parallel.tensor=2"): (
            "is 2, but the matrices of olmoe cannot be split: transformers' plan of its matrices has moe_tp_experts"
        ),
        ("model.family=olmo", "stages.1.freeze=['norm']"): "stages[1].freeze: transformers' olmo has no parameters in",
        ("model.family=olmo", "stages.1.freeze=['embedding', 'unembedding', 'attention', 'feed_forward']"): (
            "stages[1].freeze: freezes the whole model"
        ),
        ("model.family=llama", "stages.1.vocab=500"): "stages[1].vocab: is 500, and the model knows 512 tokens",
    }.items():
        with pytest.raises(PlanError) as refusal:
            make_plan(load_config("run.toml", list(changes)))
        assert said in str(refusal.value)


def test_frozen_parts_and_new_tokens_are_planned_as_the_decoders_are(folder: Path) -> None:
    changes = ["model.family=llama", "model.kv_heads=2", "stages.1.freeze=['layers.0']", "stages.2.vocab=520"]
    plan = make_plan(load_config("run.toml", [*changes, "engine.parallel.tensor=2"]))
    assert [stage.freeze for stage in plan.stages] == [(), *[("attention", "feed_forward")] * 3]
    assert [stage.vocab for stage in plan.stages] == [512, 512, 520, 520]
    ours = make_plan(load_config("run.toml", [*changes[1:], "model.ffn=128"]))
    flops = [[each.flops_per_token(stage) for stage in each.stages] for each in (plan, ours)]
    assert flops[0] == flops[1]


def test_a_folder_with_fewer_tokens_than_asked_for_is_given_more(folder: Path) -> None:
    spec = keys_spec("phi", {**SIZES, "vocab": 500}, {})  # its lm_head has a bias, which grows too
    TorchEngine(EngineSettings(spec)).export(folder / "phi")
    plan = make_plan(load_config("run.toml", ["model={ init = 'phi', vocab = 512 }"]))
    assert plan.model is not None
    assert plan.model.vocab == 512
    assert plan.starting is not None
    assert plan.starting.added["12 tokens"] == "the mean of the rows of the others"
    engine = TorchEngine(EngineSettings(plan.model))
    engine.start_from(folder / "phi")
    weights = engine.model.weights()
    for name in engine.model.vocab_rows():
        assert len(weights[name]) == 512
        assert weights[name][500:].allclose(weights[name][:500].mean(0), atol=1e-7)

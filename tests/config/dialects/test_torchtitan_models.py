"""torchtitan's configs: the models that its names and flavors stand for."""

from pathlib import Path

import pytest
import tomli_w

from tests.support.torchtitan import notes, plan_of, read, refusal, stage
from tests.support.torchtitan_itself import (
    keeps_documents_apart,
    their_defaults,
    their_dense_flavors,
    their_frequencies,
    their_model,
)
from trivium.config.dialects.translation import Notes
from trivium.model.rotary import rotary_frequencies
from trivium.model.spec import RopeSpec

LLAMA2 = {"7B": 6_738_415_616, "13B": 13_015_864_320, "70B": 68_976_648_192}  # parameters, as published


def flavored(name: str, flavor: str) -> str:
    return f'[model]\nname = "{name}"\nflavor = "{flavor}"\n'


@pytest.mark.parametrize("flavor", LLAMA2)
def test_llama_2_which_theirs_no_longer_has_is_the_published_model(file: Path, flavor: str) -> None:
    plan = plan_of(file, stage("a", 0), flavored("llama2", flavor))
    assert plan.model is not None
    assert (plan.model.parameters, plan.model.norm_eps) == (LLAMA2[flavor], 1e-5)
    assert plan.stages[0].rope == RopeSpec(theta=10_000.0)


@pytest.mark.slow
def test_a_dense_flavor_has_the_shape_of_the_model_that_theirs_builds(file: Path) -> None:
    training = '[training]\nsteps = 300\nglobal_batch_size = 8\ndataset = "c4"\n[debug]\nseed = 5\n'
    for name, flavor in their_dense_flavors("llama3", "qwen3"):
        plan = plan_of(file, flavored(name, flavor), training=training)
        (only,) = plan.stages
        assert plan.model is not None
        assert only.rope is not None
        theirs = their_model(name, flavor)
        assert {key: getattr(plan.model, key) for key in theirs} == theirs, flavor
        frequencies, _ = rotary_frequencies(only.rope, plan.model.head_dim)
        assert frequencies.tolist() == pytest.approx(their_frequencies(name, flavor), rel=1e-5), flavor
        assert only.config.document_mask is keeps_documents_apart(name, flavor), flavor


@pytest.mark.slow
def test_their_defaults_written_out_are_taken_and_are_those_of_absent_keys(file: Path) -> None:
    absent = read(file, training="[training]\n[debug]\nmoe_force_load_balance = false\n", world_size=1)
    written = read(file, training=tomli_w.dumps(their_defaults()), world_size=1)
    engine = {"precision": "bfloat16", "deterministic": False, "recompute": "selective"}
    assert written.raw == {**absent.raw, "engine": engine}


def test_llama_3_has_scaled_positions_where_a_key_is_newer_than_these(file: Path) -> None:
    plain = '[training]\nsteps = 300\nglobal_batch_size = 8\ndataset = "c4"\n'
    model = flavored("llama3", "8B")
    what = "rotary positions are not scaled, as in torchtitan before October 2025. For those after it, give"
    rope = '{ theta = 500000, scaling = "llama3", factor = 8, original_seq_len = 8192 }'
    assert notes(file, model, training=plain) == [f"model.flavor: {what} model.rope='{rope}'."]
    given = read(file, model, training=plain, overrides=[f"model.rope={rope}"]).config.model.rope
    newer = read(file, model, "[debug]\nseed = 5\n", training=plain)
    assert newer.notes == Notes()
    assert newer.config.model.rope == given
    assert given is not None
    assert (given.scaling, given.factor, given.original_seq_len) == ("llama3", 8.0, 8192)
    for known in ('dataset_type = "huggingface"', "batch_size = 8"):
        either = read(file, model, "[debug]\nseed = 5\n", training=f"{plain}{known}\n")
        assert either.raw["model"]["rope"] == {"theta": 500_000.0}
        assert either.notes == Notes()


@pytest.mark.parametrize("flavor", ["8B_flex_attn", "8B_varlen"])
def test_a_flavor_with_block_masks_keeps_documents_apart(file: Path, flavor: str) -> None:
    loaded = read(file, stage("a", 0), flavored("llama3", flavor))
    assert loaded.raw["defaults"]["document_mask"] is True
    assert loaded.raw["model"] == read(file, stage("a", 0), flavored("llama3", "8B")).raw["model"]


@pytest.mark.parametrize("name", ["flux", "vlm", "llama4", "deepseek_v3", "gpt_oss"])
def test_a_model_that_is_not_a_dense_decoder_is_refused_by_name(file: Path, name: str) -> None:
    rule = "trivium builds dense decoders of the names llama2, llama3 and qwen3, and no other model."
    assert refusal(file, stage("a", 0), flavored(name, "debugmodel")) == [f'model.name: is "{name}". {rule}']


@pytest.mark.parametrize("flavor", ["30B-A3B", "debugmodel_moe"])
def test_a_flavor_with_experts_is_refused(file: Path, flavor: str) -> None:
    said = f'model.flavor: is "{flavor}". It has experts, which trivium does not build.'
    assert refusal(file, stage("a", 0), flavored("qwen3", flavor)) == [said]


def test_a_flavor_that_is_not_known_asks_for_a_size_on_the_command_line(file: Path) -> None:
    model = flavored("llama3", "1B")
    assert refusal(file, stage("a", 0), model) == [
        'model.flavor: no shape is known for "llama3" "1B". Give one on the command line: model.size=1b.',
    ]
    assert read(file, stage("a", 0), model, overrides=["model.size=1b"]).config.model.size == "1b"

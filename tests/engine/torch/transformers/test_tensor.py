"""Ranks that share the matrices of a model of transformers learn what one process learns."""

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from tests.engine.torch.transformers.families import FAMILIES, tiny
from tests.engine.torch.transformers.tensor import KINDS, LAYOUTS, ON_FOUR, found_of_families
from tests.support.measured import run_module
from trivium.engine.torch.transformers.divided import refuse_uncomputable
from trivium.engine.torch.transformers.make import counted

CASES = [(name, kind) for name, mesh in LAYOUTS.items() for kind in KINDS if mesh.size == 2 or kind in ON_FOUR]
CASES = [(name, kind) for name, kind in CASES if name != "one"]
UNDIVIDED = {  # families of the table, by what transformers' plan lacks or has
    "no plan of how its matrices divide": ["biogpt", "bitnet", "gpt2"],
    "moe_tp_experts, packed_colwise, which is not built": [
        *("deepseek_v3", "ernie4_5_moe", "flex_olmo", "granitemoe", "mixtral", "olmoe", "qwen2_moe", "qwen3_moe"),
    ],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What every layout wrote."""
    folder = tmp_path_factory.mktemp("tensor")
    run_module("tests.engine.torch.transformers.tensor", folder)
    return folder


def figures(folder: Path, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / f"{name}.json").read_text())
    return found


@pytest.mark.slow
def test_gradients_and_losses_of_every_family_are_those_of_one_process(folder: Path) -> None:
    found = found_of_families(folder)
    refused = {family: each.refused for family, each in found.items() if each.refused is not None}
    assert refused.keys() == {family for families in UNDIVIDED.values() for family in families}
    for what, families in UNDIVIDED.items():
        assert all(what in str(refused[family]) for family in families)
    for family in FAMILIES.keys() - refused.keys():
        assert found[family].gradient_error < 1e-6, family
        assert found[family].loss_error < 1e-6, family


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kind"), CASES)
def test_every_stage_is_that_of_one_process(folder: Path, name: str, kind: str) -> None:
    one, many = (figures(folder, each)[kind] for each in ("one", name))
    loose = 5e-2 if kind == "bfloat16" else 1e-5
    for step, other in zip(one["steps"], many["steps"], strict=True):
        assert other.keys() == step.keys()
        assert other["loss"] == pytest.approx(step["loss"], rel=loose)
        assert other["norm"] == pytest.approx(step["norm"], rel=0.3 if kind == "bfloat16" else 1e-3)
    assert many["nats"] == pytest.approx(one["nats"], rel=loose)
    assert many["greedy"] == one["greedy"] or kind == "bfloat16"


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_goes_from_one_rank_to_two_and_back(folder: Path, kind: str) -> None:
    one, two, again = (figures(folder, name)[kind] for name in ("one", "tensor 2", "end"))
    loose = 1e-3 if kind == "bfloat16" else 1e-6
    assert two["more"]["loss"] == pytest.approx(one["more"]["loss"], rel=loose)
    assert again["loss"] == one["more"]["loss"]  # two ranks took no step: the same bits
    assert again["norm"] == one["more"]["norm"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_an_export_of_two_ranks_is_that_of_one(folder: Path, kind: str) -> None:
    one, two = (load_file(folder / f"{kind} exported by {size}" / "model.safetensors") for size in (1, 2))
    assert one.keys() == two.keys()
    assert all(one[name].equal(two[name]) for name in one)


def test_a_pass_without_values_tells_whether_torch_can_divide_a_family() -> None:
    refuse_uncomputable(counted(tiny("phi3")), 2)

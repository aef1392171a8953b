"""Models of transformers start from the same weights and learn the same on any number of ranks; one launch each."""

from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from tests.engine.torch.transformers.layouts import KINDS, LAYOUTS
from tests.support.measured import measured

MANY = [name for name in LAYOUTS if name != "one"]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("layouts")


@pytest.fixture(scope="module")
def layouts(folder: Path) -> dict[str, Any]:
    """The figures of every layout."""
    return measured("tests.engine.torch.transformers.layouts", folder)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", MANY)
def test_all_layouts_learn_the_same(layouts: dict[str, Any], name: str, kind: str) -> None:
    one, many = layouts["one"][kind], layouts[name][kind]
    assert many["initial"] == one["initial"]
    # A balancing loss is of a micro-batch, which has other rows on other ranks.
    loose = 3e-2 if kind == "bfloat16" else 1e-3 if kind == "olmoe" else 1e-5
    for step, other in zip(one["steps"], many["steps"], strict=True):
        assert other["loss"] == pytest.approx(step["loss"], rel=loose)
        assert (other["balance"] > 0) == (kind in ("olmoe", "bfloat16"))
    assert many["greedy"] == one["greedy"] or kind == "bfloat16"


@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_goes_from_one_rank_to_two_to_four(layouts: dict[str, Any], kind: str) -> None:
    losses = [layouts[name][kind]["handed on"]["loss"] for name in ("one", "shard 2")]
    assert losses[1] == pytest.approx(losses[0], rel=3e-2 if kind == "bfloat16" else 1e-3)
    assert layouts["shard 4"][kind]["handed on"]["loss"] > 0


def test_an_export_of_two_ranks_is_that_of_one(layouts: dict[str, Any], folder: Path) -> None:
    one, two = (load_file(folder / f"olmo3 exported by {size}" / "model.safetensors") for size in (1, 2))
    assert one.keys() == two.keys()
    assert all((one[name] - two[name]).abs().max() < 1e-4 for name in one)


def test_ranks_that_share_rows_find_the_losses_of_whole_rows(layouts: dict[str, Any]) -> None:
    for family, whole in layouts["context 1"].items():
        assert layouts["context 2"][family] == pytest.approx(whole, rel=1e-5), family

"""Every layout of ranks starts from the same weights and learns the same; real processes, one launch for each size.

Sums over ranks are taken in another order, so that figures differ by rounding: float32 losses of eight steps agree
within 1e-5, relative.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.engine.torch.layouts import HANDED_ON, KINDS, LAYOUTS, SPEC, STEPS
from trivium.engine.mesh import MeshShape, refuse_uneven_matrices
from trivium.engine.torch.ranks import first_node, take_slurms_names
from trivium.errors import ConfigError

ROOT = Path(__file__).parents[3]
MANY = [name for name in LAYOUTS if name != "one"]
EXACT = [kind for kind in KINDS if kind != "bfloat16"]


@pytest.fixture(scope="module")
def layouts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The figures of every layout."""
    folder = tmp_path_factory.mktemp("layouts")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, "-m", "tests.engine.torch.layouts", str(folder)]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    found: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return found


def losses(steps: list[dict[str, Any]]) -> list[float]:
    return [step["loss"] for step in steps]


@pytest.mark.slow
@pytest.mark.parametrize("name", MANY)
def test_all_layouts_start_from_the_same_weights_to_the_bit(layouts: dict[str, Any], name: str) -> None:
    for kind in KINDS:
        assert layouts[name][kind]["initial"] == layouts["one"][kind]["initial"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", EXACT)
@pytest.mark.parametrize("name", MANY)
def test_all_layouts_learn_the_same(layouts: dict[str, Any], name: str, kind: str) -> None:
    one, many = layouts["one"][kind]["steps"], layouts[name][kind]["steps"]
    assert len(many) == STEPS
    for step, other in zip(one, many, strict=True):
        for figure in ("loss", "norm", "z"):
            assert other[figure] == pytest.approx(step[figure], rel=1e-5 if figure != "norm" else 1e-4)
        assert other["loss_tokens"] == step["loss_tokens"]
        assert other["by_source"][1] == step["by_source"][1]
        assert other["by_source"][0] == pytest.approx(step["by_source"][0], rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", MANY)
def test_bfloat16_learns_the_same_but_for_its_rounding(layouts: dict[str, Any], name: str) -> None:
    one, many = (losses(layouts[each]["bfloat16"]["steps"]) for each in ("one", name))
    assert many == pytest.approx(one, rel=3e-2)


@pytest.mark.slow
@pytest.mark.parametrize("name", MANY)
def test_an_evaluation_adds_up_all_ranks_rows(layouts: dict[str, Any], name: str) -> None:
    one, many = (layouts[each]["adamw"]["evaluated"] for each in ("one", name))
    assert many.keys() == one.keys() == {"web", "code"}
    for source, (nats, tokens, size, text_nats) in one.items():
        assert many[source] == [pytest.approx(nats, rel=1e-5), tokens, size, pytest.approx(text_nats, rel=1e-5)]


@pytest.mark.slow
@pytest.mark.parametrize("name", MANY)
def test_ranks_generate_together_with_other_numbers_of_rows_and_lengths(layouts: dict[str, Any], name: str) -> None:
    one, many = (layouts[each]["generated"] for each in ("one", name))
    assert [len(row) for row in one["tokens"]] == [9, 3, 9]
    assert many["tokens"] == one["tokens"]
    assert many["nats"] == pytest.approx(one["nats"], rel=1e-5)


@pytest.mark.slow
def test_a_rank_holds_its_part_of_the_model(layouts: dict[str, Any]) -> None:
    held = {name: layouts[name]["adamw"]["held"] for name in LAYOUTS}
    assert held["shard 2"] == held["replicate 2 x shard 2"] == held["one"] // 2
    assert held["shard 4"] == held["one"] // 4
    assert held["shard 2 x tensor 2"] < held["shard 2"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["adamw", "muon"])
@pytest.mark.parametrize("name", list(LAYOUTS))
def test_a_layout_goes_on_bit_for_bit_from_its_own_checkpoint(layouts: dict[str, Any], name: str, kind: str) -> None:
    files = [f"rank-{rank:05}.safetensors" for rank in range(LAYOUTS[name].size)]
    assert layouts[name][f"{kind} again"] == {"same": True, "files": files}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["adamw", "muon"])
@pytest.mark.parametrize("name", MANY)
def test_a_layout_goes_on_from_the_checkpoint_of_another(layouts: dict[str, Any], name: str, kind: str) -> None:
    one = losses(layouts["one"][kind]["steps"])[HANDED_ON:]
    assert losses(layouts[name][f"{kind} of another layout"]) == pytest.approx(one, rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", list(LAYOUTS))
def test_an_exported_model_is_read_by_the_same_ranks(layouts: dict[str, Any], name: str) -> None:
    assert layouts[name]["exported"]


def test_heads_that_cannot_be_split_are_refused() -> None:
    with pytest.raises(ConfigError) as error:
        refuse_uneven_matrices(MeshShape(tensor=4), SPEC)
    assert str(error.value) == ("engine.parallel.tensor: is 4, which does not divide the model's kv_heads 2. Lower it.")


@pytest.mark.parametrize(
    ("nodes", "first"),
    [("gpu7", "gpu7"), ("gpu[007-012,020],cpu1", "gpu007"), ("a-1,b-2", "a-1"), ("n[3],m", "n3")],
)
def test_the_first_node_of_a_slurm_list(nodes: str, first: str) -> None:
    assert first_node(nodes) == first


def test_a_slurm_step_is_named_as_torchrun_names_it() -> None:
    step = {"SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "8", "SLURM_LOCALID": "1", "SLURM_JOB_ID": "40007"}
    environment = step | {"SLURM_STEP_NODELIST": "gpu[3-4]"}
    take_slurms_names(environment)
    assert {name: environment[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")} == {
        "RANK": "5",
        "WORLD_SIZE": "8",
        "LOCAL_RANK": "1",
        "MASTER_ADDR": "gpu3",
        "MASTER_PORT": "15007",
    }
    launched_by_torchrun = {"RANK": "0", "SLURM_PROCID": "3"}
    take_slurms_names(launched_by_torchrun)
    assert launched_by_torchrun == {"RANK": "0", "SLURM_PROCID": "3"}

"""A model on one, four, two by two and two by two tensor devices: made in parts, saved by one, read by the next."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow  # programs are compiled

ROOT = Path(__file__).parents[3]
MANY = ["4", "2x2", "2t2"]


@pytest.fixture(scope="module")
def meshes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The figures of every mesh."""
    folder = tmp_path_factory.mktemp("meshes")
    command = [sys.executable, "-m", "tests.engine.jax.devices", str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    figures: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return figures


@pytest.mark.parametrize("name", MANY)
def test_initial_weights_are_the_same_on_any_mesh(meshes: dict[str, Any], name: str) -> None:
    assert meshes[name]["initial"] == meshes["1"]["initial"]


def test_no_device_holds_the_whole_model(meshes: dict[str, Any]) -> None:
    norms = 5 * 32  # whole on every device
    matrices = meshes["1"]["held"][0] - norms
    assert meshes["4"]["held"] == [matrices // 4 + norms] * 4
    assert meshes["2x2"]["held"] == [matrices // 2 + norms] * 4
    embeddings = 2 * 128 * 32  # over the shard axis alone
    assert meshes["2t2"]["held"] == [(matrices - embeddings) // 4 + embeddings // 2 + norms] * 4


@pytest.mark.parametrize("name", MANY)
def test_the_optimizer_lives_where_the_parameters_do(meshes: dict[str, Any], name: str) -> None:
    # Two parts for what AdamW updates and one for Muon's matrices; and the count, on every device.
    one, count = meshes["1"], 1
    for device in range(4):
        share = meshes[name]["held"][device] / one["held"][0]
        assert meshes[name]["optimizer held"][device] - count < 1.2 * share * one["optimizer held"][0] + 2 * 160


@pytest.mark.parametrize("name", MANY)
def test_what_one_mesh_saved_another_reads(meshes: dict[str, Any], name: str) -> None:
    assert meshes[name]["handed on"] == meshes["1"]["handed on"]
    assert meshes[name]["places read"]


@pytest.mark.parametrize("name", ["1", *MANY])
def test_a_hugging_face_folder_in_several_files_is_read_part_by_part(meshes: dict[str, Any], name: str) -> None:
    assert meshes[name]["hugging face"] == meshes["1"]["hugging face"]
    weights = {each: sum_ for each, sum_ in meshes["1"]["handed on"].items() if "/" not in each}
    assert meshes["1"]["hugging face"] == weights


def test_rows_go_to_their_devices_and_come_back(meshes: dict[str, Any]) -> None:
    assert all(each["rows"] for each in meshes.values())
    assert [each["multiple"] for each in meshes.values()] == [1, 4, 4, 2]


@pytest.mark.parametrize("name", MANY)
def test_the_same_is_written_on_any_mesh(meshes: dict[str, Any], name: str) -> None:
    assert meshes[name]["written"] == meshes["1"]["written"]
    assert [len(row) for row in meshes[name]["written"]] == [6, 6, 6]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["4", "2x2", "2t2"])
def test_all_meshes_freeze_grow_and_are_taught_alike(meshes: dict[str, Any], name: str) -> None:
    one, many = dict(meshes["1"]["changed"]), dict(meshes[name]["changed"])
    assert many.pop("grown") == one.pop("grown")
    assert sorted(many.pop("frozen")) == sorted(one.pop("frozen")) != []
    assert many == pytest.approx(one, rel=1e-4)

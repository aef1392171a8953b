"""Tensors <-> safetensors files: what is written, its facts, and what a reader takes of it."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.state_dict_loader import load

from tests.support.batches import TINY
from trivium.engine.torch.state import write_state
from trivium.engine.torch.storage import DTYPES, PartsReader, write_tensors
from trivium.errors import ResumeError
from trivium.files import flushed_facts
from trivium.model.folder import TORCH_INDEX, read_spec


def tensors() -> dict[str, Tensor]:
    """One of every type; odd sizes, a scalar, an empty one and one that does not lie in one piece."""
    random = torch.Generator().manual_seed(0)
    found = {f"a {name}": torch.randint(0, 2, (3, 5), generator=random).to(dtype) for name, dtype in DTYPES.items()}
    scattered = torch.randn(4, 6, generator=random).T
    return found | {"scalar": torch.tensor(7.5), "empty": torch.empty(0, 3), "scattered": scattered}


def read(folder: Path, targets: dict[str, Tensor]) -> None:
    """Fill the targets from a folder."""
    load(
        targets, storage_reader=PartsReader(folder), planner=DefaultLoadPlanner(flatten_state_dict=False), no_dist=True
    )


def test_a_file_is_safetensors_own_and_its_facts_are_right(tmp_path: Path) -> None:
    path = tmp_path / "file"
    assert write_tensors(path, tensors()) == flushed_facts(path)
    found = load_file(path)
    assert found.keys() == tensors().keys()
    for name, tensor in tensors().items():
        assert torch.equal(found[name], tensor)
        assert found[name].dtype == tensor.dtype


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_a_state_is_written_with_an_index_and_read_back(tmp_path: Path) -> None:
    files = write_state(tmp_path, TINY, tensors(), tensors())
    assert files == {"rank-00000.safetensors": flushed_facts(tmp_path / "rank-00000.safetensors")}
    assert read_spec(tmp_path) == TINY
    index = json.loads((tmp_path / TORCH_INDEX).read_text())["tensors"]
    assert index["scattered"] == {"dtype": "F32", "shape": [6, 4], "parts": [[[0, 0], [6, 4], 0]]}
    targets = {name: torch.empty_like(tensor) for name, tensor in tensors().items()}
    read(tmp_path, targets)
    assert all(torch.equal(targets[name], tensor) for name, tensor in tensors().items())


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_the_parts_of_two_ranks_make_one_tensor(tmp_path: Path) -> None:
    whole = torch.arange(15.0).reshape(5, 3)
    write_tensors(tmp_path / "rank-00000.safetensors", {"weight": whole[:3]})
    write_tensors(tmp_path / "rank-00001.safetensors", {"weight": whole[3:]})
    parts = [[[0, 0], [3, 3], 0], [[3, 0], [2, 3], 1]]
    index = {"tensors": {"weight": {"dtype": "F32", "shape": [5, 3], "parts": parts}}}
    (tmp_path / TORCH_INDEX).write_text(json.dumps(index))
    targets = {"weight": torch.zeros(5, 3)}
    read(tmp_path, targets)
    assert torch.equal(targets["weight"], whole)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_an_index_that_names_more_than_the_file_has_is_refused(tmp_path: Path) -> None:
    write_state(tmp_path, TINY, tensors(), tensors())
    path = tmp_path / "rank-00000.safetensors"
    write_tensors(path, {"scalar": torch.tensor(1.0)})
    with pytest.raises(CheckpointException) as refusal:  # torch wraps what went wrong on each rank
        read(tmp_path, {"scattered": torch.empty(6, 4)})
    (error,) = (failure[0] for failure in refusal.value.failures.values())
    assert isinstance(error, ResumeError)
    assert str(error) == f"{path}: is corrupt: truncated, or changed since it was written. Put it back."

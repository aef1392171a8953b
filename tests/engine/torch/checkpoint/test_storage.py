"""Tensors <-> safetensors files: what is written, its facts, and what a reader takes of it."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from tests.support.batches import TINY
from trivium.engine.torch.checkpoint.parts import planned
from trivium.engine.torch.checkpoint.state import write_state
from trivium.engine.torch.checkpoint.storage import DTYPES, read_index, read_tensors, write_tensors
from trivium.errors import ResumeError
from trivium.files import FileFacts, flushed_facts
from trivium.model.folder import TORCH_INDEX, read_spec

CORRUPT = "is corrupt: truncated, or changed since it was written. Put it back."


def tensors() -> dict[str, Tensor]:
    """One of every type; odd sizes, a scalar, an empty one and one that does not lie in one piece."""
    random = torch.Generator().manual_seed(0)
    found = {f"a {name}": torch.randint(0, 2, (3, 5), generator=random).to(dtype) for name, dtype in DTYPES.items()}
    scattered = torch.randn(4, 6, generator=random).T
    return found | {"scalar": torch.tensor(7.5), "empty": torch.empty(0, 3), "scattered": scattered}


def write(folder: Path) -> dict[str, FileFacts]:
    """The tensors above, by one process."""
    return write_state(folder, TINY, planned(tensors(), None), tensors())


def read(folder: Path, targets: dict[str, Tensor]) -> None:
    """Fill the targets from a folder."""
    read_tensors(folder, read_index(folder), targets)


def test_a_file_is_safetensors_own_and_its_facts_are_right(tmp_path: Path) -> None:
    path = tmp_path / "file"
    assert write_tensors(path, tensors()) == flushed_facts(path)
    found = load_file(path)
    assert found.keys() == tensors().keys()
    for name, tensor in tensors().items():
        assert torch.equal(found[name], tensor)
        assert found[name].dtype == tensor.dtype


def test_a_state_is_written_with_an_index_and_read_back(tmp_path: Path) -> None:
    files = write(tmp_path)
    assert files == {"rank-00000.safetensors": flushed_facts(tmp_path / "rank-00000.safetensors")}
    assert read_spec(tmp_path) == TINY
    index = json.loads((tmp_path / TORCH_INDEX).read_text())
    described = dict(index["tensors"]["scattered"])
    assert index["layouts"][described.pop("parts")] == [[[0, 0], [6, 4], 0]]
    assert described == {"dtype": "F32", "shape": [6, 4]}
    targets = {name: torch.empty_like(tensor) for name, tensor in tensors().items()}
    read(tmp_path, targets)
    assert all(torch.equal(targets[name], tensor) for name, tensor in tensors().items())


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


def test_an_index_that_names_more_than_the_file_has_is_refused(tmp_path: Path) -> None:
    write(tmp_path)
    path = tmp_path / "rank-00000.safetensors"
    write_tensors(path, {"scalar": torch.tensor(1.0)})
    with pytest.raises(ResumeError) as refusal:
        read(tmp_path, {"scattered": torch.empty(6, 4)})
    assert str(refusal.value) == f"{path}: {CORRUPT}"


@pytest.mark.parametrize(
    "parts",
    [
        [[[0, 0], [3, 3], 0]],  # rows 3 and 4 are nowhere
        [[[0, 0], [6, 3], 0]],
        [[[0], [5], 0]],
        [[[-1, 0], [5, 3], 0]],
        [],
        7,
        None,
    ],
)
def test_an_index_whose_parts_do_not_make_the_tensor_is_refused(parts: object, tmp_path: Path) -> None:
    write_tensors(tmp_path / "rank-00000.safetensors", {"weight": torch.zeros(5, 3)})
    index = {"tensors": {"weight": {"dtype": "F32", "shape": [5, 3], "parts": parts}}}
    (tmp_path / TORCH_INDEX).write_text(json.dumps(index))
    with pytest.raises(ResumeError) as refusal:
        read(tmp_path, {"weight": torch.zeros(5, 3)})
    assert str(refusal.value) == f"{tmp_path / TORCH_INDEX}: {CORRUPT}"


def test_a_part_that_is_smaller_than_the_index_has_it_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rank-00000.safetensors"
    write_tensors(path, {"weight": torch.zeros(1, 3)})
    index = {"tensors": {"weight": {"dtype": "F32", "shape": [5, 3], "parts": [[[0, 0], [5, 3], 0]]}}}
    (tmp_path / TORCH_INDEX).write_text(json.dumps(index))
    with pytest.raises(ResumeError) as refusal:
        read(tmp_path, {"weight": torch.zeros(5, 3)})
    assert str(refusal.value) == f"{path}: {CORRUPT}"

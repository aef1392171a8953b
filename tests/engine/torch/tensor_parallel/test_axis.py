"""Ranks that share every matrix, and the slots between blocks, learn what one process learns."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.engine.torch.tensor_parallel.shared import KINDS, LAYOUTS, SLICE, SPEC, WIDE
from tests.support.measured import run_module
from trivium.engine.torch.tensor_parallel.axis import ALONE

MANY = [name for name in LAYOUTS if name != "one"]
FLOAT = 4  # bytes


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What every layout wrote."""
    folder = tmp_path_factory.mktemp("shared")
    run_module("tests.engine.torch.tensor_parallel.shared", folder)
    return folder


def figures(folder: Path, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / f"{name}.json").read_text())
    return found


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", MANY)
def test_losses_of_every_objective_are_those_of_one_process(folder: Path, name: str, kind: str) -> None:
    one, many = (figures(folder, each)[kind] for each in ("one", name))
    assert len(one) == (6 if kind == "own loss" else 12)
    for step, other in zip(one, many, strict=True):
        assert other.keys() == step.keys()
        for figure, value in step.items():
            # Adam divides gradients of 1e-7 by their own size: those of this loss round another way.
            rounding = 1e-5 if figure == "norm" or kind == "own loss" else 1e-6
            assert other[figure] == pytest.approx(value, rel=rounding, abs=1e-6), figure


@pytest.mark.slow
@pytest.mark.parametrize("name", MANY)
def test_gradients_of_every_parameter_are_those_of_one_process(folder: Path, name: str) -> None:
    with np.load(folder / "one.npz") as one, np.load(folder / f"{name}.npz") as many:
        assert one.files == many.files
        for key in one.files:
            np.testing.assert_allclose(many[key], one[key], rtol=0, atol=1e-6, err_msg=key)


@pytest.mark.slow
def test_a_block_gathers_its_slots_and_scatters_its_sums(folder: Path) -> None:
    found = figures(folder, "tensor 2")["calls"]
    blocks = 2 * SPEC.layers
    # Forward and backward of each block, of the embedding and of the last norm.
    assert found["calls"]["all_gather_into_tensor"] == found["calls"]["reduce_scatter_tensor"] == 2 * blocks + 2
    stream = 4 * 16 * SPEC.width * FLOAT
    assert found["bytes"]["all_gather_into_tensor"] == (2 * blocks + 2) * stream
    assert found["bytes"]["reduce_scatter_tensor"] == (2 * blocks + 2) * stream / 2
    # Norms' gradients are summed, and nothing else: those of the stream's norms, and of the heads'.
    norms = (blocks + 1) * SPEC.width + blocks * SPEC.head_dim
    assert found["calls"]["all_reduce"] == 2 * blocks + 1
    assert found["bytes"]["all_reduce"] == norms * FLOAT


@pytest.mark.slow
def test_a_slice_of_the_loss_takes_two_calls_and_its_own_part_of_the_logits(folder: Path) -> None:
    found = figures(folder, "tensor 2")["calls"]
    slices = -(-found["tokens"] // SLICE)
    assert slices > 5
    assert found["calls"]["allreduce_"] == 2 * slices
    assert found["bytes"]["allreduce_"] == 3 * found["tokens"] * FLOAT  # the largest; the sums and the targets'
    columns = WIDE.padded_vocab // 2
    matrix = [SPEC.width, columns]  # from hidden states to logits
    assert max(rows for rows, width in found["shapes"] if width == columns and [rows, width] != matrix) == SLICE
    assert all(width != WIDE.padded_vocab for _, width in found["shapes"])


def test_one_rank_sends_nothing() -> None:
    x = torch.randn(2, 3, 4)
    assert ALONE.gather(x, 3) is ALONE.scatter(x) is ALONE.join(x, 0) is ALONE.sums(x)[0] is ALONE.maximum(x)[0] is x

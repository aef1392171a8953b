"""Rows whose slots devices share: the losses, weights and figures of one device, on every layout."""

import json
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from tests.support.batches import TINY
from tests.support.scripts import ROOT
from trivium.engine.base import EngineSettings, StageSettings, refuse_misfits
from trivium.engine.mesh import MeshShape
from trivium.errors import ConfigError

pytestmark = pytest.mark.slow  # programs are compiled

LAYOUTS = {"2": "one", "1 to 4": "one", "4, ulysses": "one", "2 x 2 x 2, muon": "one, muon"}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The figures of every layout."""
    folder = tmp_path_factory.mktemp("contexts")
    command = [sys.executable, "-m", "tests.engine.jax.context_parallel.contexts", str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    figures: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return figures


@pytest.mark.parametrize("layout", LAYOUTS)
def test_two_stages_train_as_on_one_device(found: dict[str, Any], layout: str) -> None:
    ours, theirs = found[layout], found[LAYOUTS[layout]]
    assert np.array(ours["figures"][:2]) == pytest.approx(np.array(theirs["figures"][:2]), rel=1e-6)
    assert np.array(ours["figures"][2:]) == pytest.approx(np.array(theirs["figures"][2:]), rel=1e-6)
    assert same_weights(ours, theirs)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_batch_is_evaluated_as_on_one_device(found: dict[str, Any], layout: str) -> None:
    ours, theirs = found[layout], found[LAYOUTS[layout]]
    assert np.array(ours["nats"]) == pytest.approx(np.array(theirs["nats"]), abs=1e-5)
    assert ours["evaluated"] == pytest.approx(theirs["evaluated"], rel=1e-6)
    assert np.array(ours["by position"]) == pytest.approx(np.array(theirs["by position"]), rel=1e-6)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_stage_is_compiled_once_on_the_devices_it_divides(found: dict[str, Any], layout: str) -> None:
    assert found[layout]["compilations"] == [1, 0, 1, 0]


def test_what_two_devices_a_row_saved_four_continue(found: dict[str, Any]) -> None:
    ours, theirs = found["2, then resumed on 4"], found["2"]
    assert np.array(ours["figures"]) == pytest.approx(np.array(theirs["figures"][2:]), rel=1e-6)
    assert same_weights(ours, theirs)


def test_a_loss_of_ones_own_counts_every_token_once(found: dict[str, Any]) -> None:
    one, shared = (np.array(each) for each in found["own"])
    assert shared == pytest.approx(one, rel=1e-6)


def test_the_same_is_written_where_rows_are_shared(found: dict[str, Any]) -> None:
    one, shared = found["written"]
    assert shared == one
    assert [len(row) for row in one] == [2, 2, 2]


def test_a_layer_gathers_keys_and_values_once_and_never_hidden_states(found: dict[str, Any]) -> None:
    kinds = found["collectives"]["gather"]
    # 16 blocks of 3 slots, 2 rows of a device, 4 heads of 8; each device is left with the gradients of its own four.
    exchanged = {name: count for name, count in kinds.items() if name.count(",") > 1}
    assert exchanged == {
        "all-gather f32[16,2,4,3,8]": 2,
        "all-gather s32[1,2,48]": 1,  # the numbers of documents, once for all layers
        "reduce-scatter f32[4,2,4,3,8]": 2,
    }


def test_ulysses_gathers_no_keys(found: dict[str, Any]) -> None:
    kinds = found["collectives"]["ulysses"]
    assert not [name for name in kinds if name.startswith(("all-gather f32", "reduce")) and name.count(",") > 1]
    assert sum(count for name, count in kinds.items() if name.startswith("all-to-all")) == 8  # there and back


@pytest.mark.parametrize(
    ("others", "what"),
    [
        ({"context_method": "ulysses"}, "is 4, which does not divide the kv_heads 2 that "),
        ({"make_model": print}, "is 4, but only the decoder attends over several ranks, and print makes the model."),
    ],
)
def test_layouts_that_cannot_be_are_refused_with_the_sizes(others: dict[str, Any], what: str) -> None:
    settings = EngineSettings(TINY, mesh=MeshShape(shard=4, context=2), **others)
    with pytest.raises(ConfigError) as refusal:
        refuse_misfits(settings, StageSettings(16, context=4))
    assert what in str(refusal.value)


def same_weights(ours: dict[str, Any], theirs: dict[str, Any]) -> bool:
    assert ours["weights"].keys() == theirs["weights"].keys()
    return all(
        np.array(ours["weights"][name]) == pytest.approx(np.array(weight), abs=1e-6)
        for name, weight in theirs["weights"].items()
    )

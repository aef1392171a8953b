"""What the JAX engine saves: the same arrays from the same steps, and files whose size and hash are known."""

from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from tests.support.batches import TINY
from tests.support.trained import train
from trivium.engine.jax.state import (
    ARRAYS,
    OPTIMIZER,
    WEIGHTS,
    StateWriter,
    array_hashes,
    read_state,
    room_for,
    saved_shapes,
)
from trivium.errors import ResumeError
from trivium.files import flushed_facts

pytestmark = pytest.mark.slow  # programs are compiled


def test_two_launches_that_take_the_same_steps_save_the_same_arrays(tmp_path: Path) -> None:
    one, other = (array_hashes(train("jax", 1, tmp_path / name)) for name in ("one", "other"))
    assert {name.partition("/")[0] for name in one} == {WEIGHTS, OPTIMIZER}
    assert one == other


def test_arrays_come_back_to_the_bit_and_files_are_reported_as_they_are(tmp_path: Path) -> None:
    state = {WEIGHTS: {"a.weight": jnp.arange(6.0).reshape(2, 3) / 7}, OPTIMIZER: {"count": jnp.asarray(5)}}
    files = StateWriter().save(tmp_path, TINY, state, background=False).wait()
    own = f"{ARRAYS}/ocdbt.process_0/"
    assert files
    for name, facts in files.items():
        assert name.startswith(own)
        assert facts == flushed_facts(tmp_path / name)
    assert saved_shapes(tmp_path, TINY) == {WEIGHTS: {"a.weight": (2, 3)}, OPTIMIZER: {"count": ()}}
    read = read_state(tmp_path, room_for(state))
    for part, arrays in state.items():
        for name, array in arrays.items():
            assert np.array_equal(np.asarray(read[part][name]), np.asarray(array))


def test_a_folder_that_no_engine_saved_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ResumeError) as refusal:
        saved_shapes(tmp_path, TINY)
    assert str(refusal.value) == f"{tmp_path}: is not a folder that an engine saved, or not a whole one."

"""What the JAX engine saved -> its weights one by one, as NumPy arrays."""

from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
from numpy.typing import NDArray

from trivium.engine.jax.model import Design
from trivium.engine.jax.state import WEIGHTS, read_state, saved_shapes
from trivium.model.folder import refuse_other_parameters
from trivium.model.huggingface_files import cut_shape
from trivium.model.spec import ModelSpec


def single_weights(folder: Path, spec: ModelSpec) -> Callable[[str], NDArray[np.float32]]:
    """What reads one weight by its name of what this engine saved; the rows that only pad a vocabulary are cut off."""
    shapes = Design(spec, "float32").shapes()
    refuse_other_parameters(folder, saved_shapes(folder, spec)[WEIGHTS], shapes)
    here = jax.sharding.SingleDeviceSharding(jax.devices("cpu")[0])

    def read(name: str) -> NDArray[np.float32]:
        room = jax.ShapeDtypeStruct(shapes[name], np.float32, sharding=here)
        whole = np.asarray(read_state(folder, {WEIGHTS: {name: room}})[WEIGHTS][name])
        return whole[: cut_shape(name, shapes[name], spec.vocab)[0]]

    return read

"""A folder of either kind -> a model's weights, each part on its device."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
from jax import Array
from jax.sharding import NamedSharding, PartitionSpec

from trivium.engine.grow import VOCAB_MATRICES
from trivium.engine.jax import huggingface
from trivium.engine.jax.grow import lay_rows
from trivium.engine.jax.state import WEIGHTS, read_state, saved_shapes
from trivium.model.folder import is_saved, read_spec, refuse_other_model, refuse_other_parameters
from trivium.model.spec import ModelSpec


def read_weights(folder: Path, target: Mapping[str, jax.ShapeDtypeStruct], spec: ModelSpec) -> dict[str, Array]:
    """The weights alone, from what this engine saved or from a Hugging Face folder; another model is refused.

    The target has each one's shape, type and place; they are converted to that type. Of a smaller vocabulary than the
    target's the new rows are the mean of the others.
    """
    theirs = read_spec(folder)
    there = replace(spec, vocab=min(theirs.vocab, spec.vocab)) if theirs.own is None else spec
    if not is_saved(folder):
        refuse_other_model(folder, there)
        return huggingface.read_weights(folder, target, spec, there.vocab)
    saved = saved_shapes(folder, there)  # refuses another model's, and another engine's
    apart = {name: room for name, room in target.items() if name in VOCAB_MATRICES and there.vocab < spec.vocab}
    shapes = {name: (there.padded_vocab, *room.shape[1:]) for name, room in apart.items()}
    refuse_other_parameters(folder, saved[WEIGHTS], {name: room.shape for name, room in target.items()} | shapes)
    others = {name: room for name, room in target.items() if name not in apart}
    # Orbax reads what is asked for, so that both are asked for at once.
    rows = {
        name: jax.ShapeDtypeStruct(shape, np.float32, sharding=_everywhere(apart[name]))
        for name, shape in shapes.items()
    }
    read = read_state(folder, {WEIGHTS: others | rows})[WEIGHTS]
    for name, room in apart.items():
        known = np.asarray(read[name].addressable_shards[0].data)[: there.vocab]
        read[name] = lay_rows(known, room, spec.vocab, averaged=True)
    return {name: read[name] for name in target}


def _everywhere(room: jax.ShapeDtypeStruct) -> NamedSharding:
    """Whole on every device that has a part of the room."""
    assert isinstance(room.sharding, NamedSharding), "a parameter lives on a mesh"
    return NamedSharding(room.sharding.mesh, PartitionSpec())

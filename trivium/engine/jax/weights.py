"""A folder of either kind -> a model's weights, each part on its device; and weights with a row for every token ->
the same for a larger vocabulary.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from numpy.typing import NDArray

from trivium.engine.grow import VOCAB_MATRICES, grown_part
from trivium.engine.jax import huggingface
from trivium.engine.jax.sharding import parameter_sharding
from trivium.engine.jax.state import WEIGHTS, read_state, saved_shapes
from trivium.errors import UsageError
from trivium.model.folder import is_saved, read_spec, refuse_other_model, refuse_other_parameters
from trivium.model.spec import ModelSpec

Tree = TypeVar("Tree")


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


def lay_rows(rows: NDArray[Any], room: jax.ShapeDtypeStruct, vocab: int, *, averaged: bool) -> Array:
    """An array of the room's shape, type and place, from the rows of all old tokens, which every process has whole."""
    part = partial(_part, rows, room, vocab, averaged)
    return jax.make_array_from_callback(room.shape, room.sharding, part)


def _part(
    rows: NDArray[Any], room: jax.ShapeDtypeStruct, vocab: int, averaged: bool, where: tuple[slice, ...] | None
) -> NDArray[Any]:
    assert where is not None
    return grown_part(rows, where, room.shape, vocab, averaged=averaged).astype(room.dtype)


def grown(arrays: Mapping[str, Array], shapes: Mapping[str, tuple[int, ...]], old: int, vocab: int) -> dict[str, Array]:
    """Parameters or a copy of them with the mean of the old rows for new tokens; all processes must ask."""
    return {
        name: _grown(name, array, shapes[name], old, vocab, averaged=True) if name in VOCAB_MATRICES else array
        for name, array in arrays.items()
    }


def grown_state(
    state: Tree, was: Mapping[str, tuple[int, ...]], shapes: Mapping[str, tuple[int, ...]], old: int, vocab: int
) -> Tree:
    """An optimizer's state, whose leaves are known by the last name on their paths, with zeros for new tokens."""

    def grow(path: tuple[Any, ...], leaf: Array) -> Array:
        name = getattr(path[-1], "key", None) if path else None
        if name not in VOCAB_MATRICES or leaf.ndim == 0:
            return leaf
        if leaf.shape == was[name]:
            return _grown(name, leaf, shapes[name], old, vocab, averaged=False)
        if was[name][0] in leaf.shape and was[name] != shapes[name]:
            what = f"the optimizer keeps {name} in a shape of its own, {leaf.shape}, which does not grow"
            raise UsageError(f"{what} with the vocabulary. Write reset_optimizer = true in that stage.")
        return leaf

    found: Tree = jax.tree.map_with_path(grow, state)
    return found


def _grown(name: str, array: Array, shape: tuple[int, ...], old: int, vocab: int, *, averaged: bool) -> Array:
    mesh = array.sharding.mesh  # type: ignore[attr-defined]
    assert isinstance(mesh, Mesh), "a state lives on a mesh"
    room = jax.ShapeDtypeStruct(shape, array.dtype, sharding=parameter_sharding(name, shape, mesh))
    return lay_rows(huggingface.whole(array)[:old], room, vocab, averaged=averaged)

"""Arrays with a row for every token -> the same for a larger vocabulary, each part on its device."""

from collections.abc import Mapping
from functools import partial
from typing import Any, TypeVar

import jax
import numpy as np
from jax import Array
from jax.sharding import Mesh
from numpy.typing import NDArray

from trivium.engine.grow import VOCAB_MATRICES, grown_part
from trivium.engine.jax.huggingface import whole
from trivium.engine.jax.sharding import parameter_sharding
from trivium.errors import UsageError

Tree = TypeVar("Tree")


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
    return lay_rows(np.asarray(whole(array))[:old], room, vocab, averaged=averaged)

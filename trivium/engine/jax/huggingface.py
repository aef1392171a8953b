"""A Hugging Face folder's weights <-> a decoder's; of every tensor a device reads the part that it holds."""

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax import Array
from jax.experimental import multihost_utils
from numpy.typing import NDArray
from safetensors.numpy import save_file

from trivium.files import readable_by_others
from trivium.model.families.table import family_of
from trivium.model.huggingface import read_family, write_config
from trivium.model.huggingface_files import SHARD_BYTES, cut_shape, fitting_files, open_tensors, shards, write_index
from trivium.model.spec import ModelSpec, RopeSpec


def read_weights(folder: Path, target: Mapping[str, jax.ShapeDtypeStruct], spec: ModelSpec) -> dict[str, Array]:
    """Arrays of the target's types and places; what is missing, too much or misshapen is refused, all at once."""
    shapes = {name: cut_shape(name, room.shape, spec.vocab) for name, room in target.items()}
    family = read_family(folder)
    files = fitting_files(folder, shapes, family, spec)
    with ExitStack() as opened:
        by_path = {path: opened.enter_context(open_tensors(path, "np")) for path in set(files.values())}
        return {
            name: _read(by_path[files[name]].get_slice(family.their_name(name)), room, family.added(name))
            for name, room in target.items()
        }


def _read(tensor: Any, room: jax.ShapeDtypeStruct, added: float) -> Array:
    """One array, device by device, and a number; what lies beyond the file's end pads the vocabulary with zeros."""

    def part(where: tuple[slice, ...] | None) -> NDArray[Any]:
        assert where is not None
        starts, ends, _ = zip(*(each.indices(size) for each, size in zip(where, room.shape, strict=True)), strict=True)
        values = np.zeros(np.subtract(ends, starts), room.dtype)
        last = min(ends[0], tensor.get_shape()[0])
        if starts[0] < last:
            values[: last - starts[0]] = tensor[(slice(starts[0], last), *where[1:])].astype(room.dtype) + added
        return values

    return jax.make_array_from_callback(room.shape, room.sharding, part)


def write_folder(
    params: Mapping[str, Array],
    spec: ModelSpec,
    rope: RopeSpec,
    seq_len: int,
    folder: Path,
    shard_bytes: int = SHARD_BYTES,
) -> None:
    """Weights without the padded vocabulary, in files of up to `shard_bytes`, and config.json.

    All processes take part; the first writes, and holds one file's weights at a time.
    """
    family = family_of(spec, rope)
    constants = {name: np.array(value, np.float32) for name, value in family.constants(spec).items()}
    writes = jax.process_index() == 0
    shapes = {name: cut_shape(name, array.shape, spec.vocab) for name, array in params.items()}
    element_bytes = next(iter(params.values())).dtype.itemsize
    files = shards(shapes, element_bytes, shard_bytes)
    if writes:
        folder.mkdir(parents=True, exist_ok=True)
        write_index(folder, files, shapes, element_bytes, family, spec)
    for file, names in files.items():
        on_host, constants = constants, {}  # which are in the first one
        for name in names:
            array = whole(params[name])
            if writes:
                theirs = array - array.dtype.type(family.added(name)) if family.added(name) else array
                on_host[family.their_name(name)] = np.ascontiguousarray(theirs[: shapes[name][0]])
        if writes:
            with readable_by_others(folder / file):
                save_file(on_host, folder / file, metadata={"format": "pt"})
    if writes:
        write_config(folder, spec, rope, seq_len)


def whole(array: Array) -> NDArray[Any]:
    """An array with all its parts, on every process; all must ask."""
    if array.is_fully_addressable:
        return np.asarray(array)
    return np.asarray(multihost_utils.process_allgather(array, tiled=True))

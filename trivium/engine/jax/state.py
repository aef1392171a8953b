"""An engine's arrays <-> a folder, exact to the bit, on any mesh and any number of processes.

    arrays/         what Orbax writes: weights/PARAMETER, optimizer/PART/PARAMETER; zarr and JSON, never a pickle
    engine.json     the model's shape, to refuse another one by name

Every process writes what its devices hold, hashes and flushes its own files. Saving in the background costs a copy in
the host's memory and the time to make it; on a CPU the arrays themselves are kept until they are written, and the
next step makes new ones. What one mesh wrote another reads: the target has the place of each part.
Renaming the folder is the caller's part, once `wait` has returned.
"""

import logging
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from jax import Array

from trivium.engine.base import SaveHandle
from trivium.engine.jax.ranks import gather_aside
from trivium.errors import ResumeError
from trivium.files import FileFacts, flushed_facts
from trivium.model.folder import TORCH_INDEX, is_saved, refuse_other_engine, refuse_other_model, write_spec
from trivium.model.spec import ModelSpec

ARRAYS = "arrays"
WEIGHTS, OPTIMIZER = "weights", "optimizer"

State = Mapping[str, Mapping[str, Array]]
"""Weights and the optimizer's state, each by name; random numbers come from seed and step, so that none are kept."""

Target = Mapping[str, Mapping[str, jax.ShapeDtypeStruct]]
"""Shapes, types and places for them."""


def array_hashes(folder: Path) -> dict[str, str]:
    """A hash of every saved array, by its part and name; Orbax names its files by chance and dates them."""
    reader = ocp.Checkpointer(ocp.PyTreeCheckpointHandler())
    tree = reader.metadata(folder.absolute() / ARRAYS).item_metadata.tree
    as_numpy = {
        part: {name: ocp.RestoreArgs(restore_type=np.ndarray) for name in leaves} for part, leaves in tree.items()
    }
    read = reader.restore(folder.absolute() / ARRAYS, args=ocp.args.PyTreeRestore(restore_args=as_numpy))
    return {
        f"{part}/{name}": blake2b(f"{array.dtype} {array.shape}".encode() + array.tobytes()).hexdigest()
        for part, arrays in read.items()
        for name, array in arrays.items()
    }


class StateWriter:
    """Writes states into folders, one after the other."""

    def __init__(self) -> None:
        _hush()
        self._orbax = ocp.AsyncCheckpointer(_handler())
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="save")

    def save(self, folder: Path, spec: ModelSpec, state: State, *, background: bool) -> SaveHandle:
        """Returns once this process' parts are copied; not in the background, once all is written."""
        folder = folder.absolute()
        folder.mkdir(parents=True, exist_ok=True)
        if jax.process_index() == 0:
            write_spec(folder, spec)
        self._orbax.save(folder / ARRAYS, args=ocp.args.PyTreeSave(dict(state)))
        save = SaveHandle(self._thread.submit(self._finish, folder))
        if not background:
            save.wait()
        return save

    def _finish(self, folder: Path) -> dict[str, FileFacts]:
        """Wait for the files; on the first process, returns every process' own."""
        self._orbax.wait_until_finished()
        own = folder / ARRAYS / f"ocdbt.process_{jax.process_index()}"
        facts = {path.relative_to(folder).as_posix(): flushed_facts(path) for path in own.rglob("*") if path.is_file()}
        return {name: fact for each in gather_aside(facts) for name, fact in each.items()}


def read_state(folder: Path, target: Target) -> dict[str, dict[str, Array]]:
    """What was saved under the target's names, in its types and places."""
    _hush()
    wanted = {part: dict(leaves) for part, leaves in target.items() if leaves}
    args = jax.tree.map(
        lambda leaf: ocp.ArrayRestoreArgs(dtype=leaf.dtype, sharding=leaf.sharding, global_shape=leaf.shape), wanted
    )
    restore = ocp.args.PyTreeRestore(wanted, restore_args=args, partial_restore=True)
    read: dict[str, dict[str, Array]] = ocp.Checkpointer(_handler()).restore(folder.absolute() / ARRAYS, args=restore)
    return {part: read.get(part, {}) for part in target}


def saved_shapes(folder: Path, spec: ModelSpec) -> dict[str, dict[str, tuple[int, ...]]]:
    """Shapes by part and name; refuses a folder that holds another model's, or another engine's."""
    if not is_saved(folder):
        raise ResumeError(f"{folder}: is not a folder that an engine saved, or not a whole one.")
    refuse_other_model(folder, spec)
    refuse_other_engine(folder, "jax")
    _hush()
    found = ocp.Checkpointer(_handler()).metadata(folder.absolute() / ARRAYS).item_metadata
    if found is None:
        raise ResumeError(f"{folder}: has neither {TORCH_INDEX} of torch nor {ARRAYS} of JAX. Put them back.")
    tree = found.tree
    return {part: {name: tuple(leaf.shape) for name, leaf in leaves.items()} for part, leaves in tree.items()}


def named_leaves(tree: Any) -> dict[str, Any]:
    """A tree's leaves by their paths: `adam/mu/layers.0.attention.query.weight`."""
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in jax.tree.leaves_with_path(tree)
    }


def room_for(tree: Any) -> Any:
    """Shapes, types and places of a tree's arrays."""
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding), tree)


def refuse_other_optimizer(saved: Mapping[str, tuple[int, ...]], now: Mapping[str, jax.ShapeDtypeStruct]) -> None:
    """An optimizer continues from what it kept of every parameter, and from nothing else."""
    if dict(saved) != {name: tuple(leaf.shape) for name, leaf in now.items()}:
        was, is_now = (", ".join(sorted({name.rpartition("/")[0] or name for name in names})) for names in (saved, now))
        raise ResumeError(
            f"the optimizer kept {was or 'nothing'}, and now keeps {is_now or 'nothing'} of other parameters. "
            "Put optimizer.name back, or reset the optimizer in a new stage."
        )


def _handler() -> ocp.PyTreeCheckpointHandler:
    """Weights hardly compress."""
    return ocp.PyTreeCheckpointHandler(use_ocdbt=True, use_zarr3=True, use_compression=False)


def _hush() -> None:
    """Silence Orbax, which logs every save at length; the run's events have a line for each."""
    logging.getLogger("absl").setLevel(logging.ERROR)

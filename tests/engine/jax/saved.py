"""What the JAX engine saved, as bits: Orbax names its files by chance and dates them, so that files tell nothing."""

import hashlib
from pathlib import Path

import numpy as np
import orbax.checkpoint as ocp

from trivium.engine.jax.state import ARRAYS


def array_hashes(folder: Path) -> dict[str, str]:
    """A hash of every saved array, by its part and name."""
    reader = ocp.Checkpointer(ocp.PyTreeCheckpointHandler())
    tree = reader.metadata(folder.absolute() / ARRAYS).item_metadata.tree
    as_numpy = {
        part: {name: ocp.RestoreArgs(restore_type=np.ndarray) for name in leaves} for part, leaves in tree.items()
    }
    read = reader.restore(folder.absolute() / ARRAYS, args=ocp.args.PyTreeRestore(restore_args=as_numpy))
    return {
        f"{part}/{name}": hashlib.blake2b(f"{array.dtype} {array.shape}".encode() + array.tobytes()).hexdigest()
        for part, arrays in read.items()
        for name, array in arrays.items()
    }

"""A folder's weights one by one, as NumPy arrays: whatever a torch engine saved, and the Hugging Face form."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from trivium.engine.torch.checkpoint.state import WEIGHTS, read_into, saved_tensors
from trivium.engine.torch.model import Decoder
from trivium.model.folder import is_saved, refuse_other_parameters
from trivium.model.huggingface import read_family
from trivium.model.huggingface_files import cut_shape, fitting_files, open_tensors
from trivium.model.spec import ModelSpec


def weight_shapes(spec: ModelSpec) -> dict[str, list[int]]:
    """The shapes of a decoder's weights by name, as files have them."""
    return {name: cut_shape(name, shape, spec.vocab) for name, shape in _held_shapes(spec).items()}


def single_weights(folder: Path, spec: ModelSpec) -> Callable[[str], NDArray[np.float32]]:
    """What reads one weight by its name; a folder in which any is missing or of another shape is refused now."""
    return _saved(folder, spec) if is_saved(folder) else _huggingface(folder, spec)


def _saved(folder: Path, spec: ModelSpec) -> Callable[[str], NDArray[np.float32]]:
    index = saved_tensors(folder, spec)
    theirs = {name.removeprefix(WEIGHTS): facts.shape for name, facts in index.items() if name.startswith(WEIGHTS)}
    refuse_other_parameters(folder, theirs, _held_shapes(spec))
    shapes = weight_shapes(spec)

    def read(name: str) -> NDArray[np.float32]:
        whole = torch.empty(theirs[name], dtype=torch.float32)
        read_into(folder, index, {WEIGHTS + name: whole})
        found: NDArray[np.float32] = whole[: shapes[name][0]].numpy()
        return found

    return read


def _huggingface(folder: Path, spec: ModelSpec) -> Callable[[str], NDArray[np.float32]]:
    family = read_family(folder)
    files = fitting_files(folder, weight_shapes(spec), family, spec)

    def read(name: str) -> NDArray[np.float32]:
        with open_tensors(files[name], "pt") as file:
            found: NDArray[np.float32] = file.get_tensor(family.their_name(name)).float().numpy()
        return found + np.float32(family.added(name)) if family.added(name) else found

    return read


def _held_shapes(spec: ModelSpec) -> dict[str, torch.Size]:
    with torch.device("meta"):
        return {name: parameter.shape for name, parameter in Decoder(spec).weights().items()}

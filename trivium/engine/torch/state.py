"""An engine's tensors <-> a folder of safetensors files: exact to the bit, and never a pickle.

    weights.safetensors     by parameter
    optimizer.safetensors   by parameter and part
    random.safetensors      states of the random generators
    engine.json             the model's shape, to refuse another one by name

Saving in the background costs a copy of the state and the time to make it; the rest is written while training
goes on. Flushing and renaming the folder is the caller's part, once `wait` has returned.
"""

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from trivium.engine.folder import is_saved, refuse_other_model, write_spec
from trivium.engine.spec import ModelSpec
from trivium.errors import ResumeError

WEIGHTS, OPTIMIZER, RANDOM = "weights", "optimizer", "random"

State = Mapping[str, Mapping[str, Tensor]]


@dataclass(frozen=True, slots=True)
class Save:
    """A save under way in a thread."""

    future: "Future[None]"

    def done(self) -> bool:
        """Whether everything is written, or writing has failed."""
        return self.future.done()

    def wait(self) -> None:
        """Return when everything is written; raise what went wrong."""
        self.future.result()


class Writer:
    """Writes states into folders, one after the other."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="save")

    def save(self, folder: Path, spec: ModelSpec, state: State, *, background: bool) -> Save:
        """In the background: returns once the state is copied."""
        if background:
            copy = {file: {name: tensor.cpu().clone() for name, tensor in part.items()} for file, part in state.items()}
            return Save(self._thread.submit(write_state, folder, spec, copy))
        future: Future[None] = Future()
        write_state(folder, spec, state)
        future.set_result(None)
        return Save(future)


def write_state(folder: Path, spec: ModelSpec, state: State) -> None:
    """One file for each part of the state."""
    folder.mkdir(parents=True, exist_ok=True)
    for file, tensors in state.items():
        save_file({name: tensor.cpu().contiguous() for name, tensor in tensors.items()}, _path(folder, file))
    write_spec(folder, spec)


def read_part(folder: Path, file: str, spec: ModelSpec) -> dict[str, Tensor]:
    """One part of a state, on the CPU; refuses a folder that holds another model's."""
    if not is_saved(folder):
        raise ResumeError(f"{folder}: is not a folder that an engine saved, or not a whole one.")
    refuse_other_model(folder, spec)
    return load_file(_path(folder, file))


def random_state() -> dict[str, Tensor]:
    """States of torch's own generators."""
    states = {"cpu": torch.get_rng_state()}
    for number in range(torch.cuda.device_count()):
        states[f"cuda:{number}"] = torch.cuda.get_rng_state(number)
    return states


def set_random_state(states: Mapping[str, Tensor]) -> None:
    """Put them back, as far as the devices exist."""
    torch.set_rng_state(states["cpu"])
    for number in range(torch.cuda.device_count()):
        if f"cuda:{number}" in states:
            torch.cuda.set_rng_state(states[f"cuda:{number}"], number)


def _path(folder: Path, file: str) -> Path:
    return folder / f"{file}.safetensors"

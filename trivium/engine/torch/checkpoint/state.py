"""An engine's tensors <-> a folder, exact to the bit, on any number of ranks.

    weights/PARAMETER           optimizer/PARAMETER:PART           random/RANK:GENERATOR

in the files that `storage` describes, and engine.json: the model's shape, to refuse another one by name. `parts` says
who writes what; what one layout wrote another reads.

Saving in the background costs a copy of what a rank writes and the time to make it; the rest happens while training
continues. The ranks exchange one small message, over the saves' own process group, when their files are written. The
copy's memory is kept from save to save: to touch fresh pages costs more than to copy. Renaming the folder is the
caller's part, once `wait` has returned.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from trivium.engine.base import SaveHandle
from trivium.engine.torch.checkpoint.parts import SavedTensor, part_of, planned, whole_part
from trivium.engine.torch.checkpoint.storage import (
    Index,
    file_name,
    read_index,
    read_tensors,
    write_index,
    write_tensors,
)
from trivium.engine.torch.ranks import gather_aside
from trivium.errors import ResumeError, SaveError
from trivium.files import FileFacts
from trivium.model.folder import is_saved, refuse_other_engine, refuse_other_model, refuse_other_parameters, write_spec
from trivium.model.spec import ModelSpec

WEIGHTS, OPTIMIZER, RANDOM = "weights/", "optimizer/", "random/"

State = Mapping[str, Tensor]


class StateWriter:
    """Writes states into folders, one after the other; `mesh` is that of all ranks, None for one process."""

    def __init__(self, mesh: DeviceMesh | None = None) -> None:
        self._mesh = mesh
        self._rank, self._size = (dist.get_rank(), dist.get_world_size()) if mesh is not None else (0, 1)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="save")
        self._last: Future[dict[str, FileFacts]] | None = None
        self._copies: dict[str, Tensor] = {}

    def save(self, folder: Path, spec: ModelSpec, state: State, random: State, *, background: bool) -> SaveHandle:
        """Write what ranks share and each rank's own random state; in the background: returns once it is copied."""
        index = planned(state, self._mesh)
        parts = {name: part_of(tensor, index[name].parts, self._rank) for name, tensor in state.items()}
        own = {name: part for name, part in parts.items() if part is not None}
        own |= {f"{RANDOM}{self._rank:05}:{generator}": tensor for generator, tensor in random.items()}
        for rank in range(self._size):
            for generator, tensor in random.items():
                whole = whole_part(tuple(tensor.shape), rank)
                index[f"{RANDOM}{rank:05}:{generator}"] = SavedTensor(tensor.dtype, tensor.shape, whole)
        if background:
            if self._last is not None:
                wait([self._last])  # it writes what is copied over next
            self._copies = {name: _copied(part, self._copies.get(name)) for name, part in own.items()}
            self._last = self._thread.submit(write_state, folder, spec, index, self._copies, self._rank)
            return SaveHandle(self._last)
        future: Future[dict[str, FileFacts]] = Future()
        future.set_result(write_state(folder, spec, index, own, self._rank))
        return SaveHandle(future)


def write_state(folder: Path, spec: ModelSpec, index: Index, parts: State, rank: int = 0) -> dict[str, FileFacts]:
    """Write a rank's parts, and on rank 0 what all of them are; returns every rank's files when all are written."""
    facts: FileFacts | None = None
    failure: Exception | None = None
    try:
        folder.mkdir(parents=True, exist_ok=True)  # by every rank: it may be another machine's
        facts = write_tensors(folder / file_name(rank), parts) if parts else None
        if rank == 0:
            write_index(folder, index)
            write_spec(folder, spec)
    except Exception as error:  # a full disk shows itself in many ways; the other ranks wait to hear of it
        failure = error
    told: dict[str, Any] = {"facts": facts, "failure": None if failure is None else str(failure)}
    by_rank = gather_aside(told)
    if failure is not None:
        raise failure
    for other, each in enumerate(by_rank):
        if each["failure"] is not None:
            raise SaveError(f"rank {other}: {each['failure']}")
    return {file_name(other): each["facts"] for other, each in enumerate(by_rank) if each["facts"] is not None}


def read_into(folder: Path, saved: Index, state: State) -> None:
    """Fill tensors in place with what was saved under their names."""
    missing = sorted(state.keys() - saved.keys())
    if missing:
        raise ResumeError(f"{folder}: has no {missing[0]}. Put it back, or give another checkpoint.")
    read_tensors(folder, saved, state)


def saved_tensors(folder: Path, spec: ModelSpec) -> dict[str, SavedTensor]:
    """What a folder has, by name, read once a load; refuses a folder that holds another model's."""
    if not is_saved(folder):
        raise ResumeError(f"{folder}: is not a folder that an engine saved, or not a whole one.")
    refuse_other_model(folder, spec)
    refuse_other_engine(folder, "torch")
    return read_index(folder)


def refuse_other_weights(folder: Path, ours: Mapping[str, Sequence[int]], saved: Index) -> None:
    """A model is filled by names, and no name may be missing, left over or of another shape than ours."""
    theirs = {name.removeprefix(WEIGHTS): facts.shape for name, facts in saved.items() if name.startswith(WEIGHTS)}
    refuse_other_parameters(folder, theirs, ours)


def under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same under longer names."""
    return {prefix + name: tensor for name, tensor in tensors.items()}


def random_state() -> dict[str, Tensor]:
    """States of torch's own generators, on this rank; all ranks have the same ones."""
    states = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def load_random_state(folder: Path, saved: Index, rank: int) -> None:
    """Put them back; a rank that was not there when they were saved takes those of rank 0."""
    wanted = {}
    for generator, state in random_state().items():
        names = (f"{RANDOM}{each:05}:{generator}" for each in (rank, 0))
        name = next((name for name in names if name in saved), None)
        if name is not None:
            wanted[name] = state
    read_into(folder, saved, wanted)
    for name, state in wanted.items():
        (torch.cuda.set_rng_state if name.endswith("cuda") else torch.set_rng_state)(state)


def _copied(part: Tensor, room: Tensor | None) -> Tensor:
    """A copy on the CPU, in memory that is there already where it fits."""
    if room is None or (room.shape, room.dtype) != (part.shape, part.dtype):
        room = torch.empty_like(part, device="cpu", pin_memory=part.is_cuda)
    return room.copy_(part)

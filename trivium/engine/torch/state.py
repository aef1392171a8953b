"""An engine's tensors <-> a folder, exact to the bit, on any number of ranks.

    weights/PARAMETER           optimizer/PARAMETER:PART           random/RANK:GENERATOR

in the files that `storage` describes, and engine.json: the model's shape, to refuse another one by name.
torch.distributed.checkpoint plans who writes and who reads what, so that what one layout wrote another reads.

Saving in the background costs a copy of what a rank holds and the time to make it; the rest is written, and agreed
upon over the saves' own process group, while training continues. The copy's memory is kept from save to save: to touch
fresh pages costs more than to copy. Renaming the folder is the caller's part, once
`wait` has returned.
"""

import warnings
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.metadata import MetadataIndex, TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.tensor import DTensor

from trivium.engine.base import SaveHandle
from trivium.engine.torch.ranks import saving_group
from trivium.engine.torch.storage import PartsReader, PartsWriter
from trivium.errors import ResumeError
from trivium.files import FileFacts
from trivium.model.folder import is_saved, refuse_other_engine, refuse_other_model, refuse_other_parameters
from trivium.model.spec import ModelSpec

WEIGHTS, OPTIMIZER, RANDOM = "weights/", "optimizer/", "random/"

State = Mapping[str, Tensor]


class StateWriter:
    """Writes states into folders, one after the other."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="save")
        self._last: Future[dict[str, FileFacts]] | None = None
        self._copies: dict[str, Tensor] = {}

    def save(self, folder: Path, spec: ModelSpec, state: State, *, background: bool) -> SaveHandle:
        """In the background: returns once this rank's parts are copied."""
        _hush()
        whole = {name: tensor.detach() for name, tensor in state.items()}
        parts = {name: each.to_local() if isinstance(each, DTensor) else each for name, each in whole.items()}
        if background:
            if self._last is not None:
                wait([self._last])  # it writes what is copied over next
            self._copies = {name: _copied(part, self._copies.get(name)) for name, part in parts.items()}
            self._last = self._thread.submit(write_state, folder, spec, state, self._copies)
            return SaveHandle(self._last)
        future: Future[dict[str, FileFacts]] = Future()
        future.set_result(write_state(folder, spec, state, parts))
        return SaveHandle(future)


class _Planner(DefaultSavePlanner):
    """Plans by the state's layout; the data are the parts, which may be copies."""

    def __init__(self, parts: State) -> None:
        super().__init__(flatten_state_dict=False)
        self.parts = parts

    def lookup_object(self, index: MetadataIndex) -> Any:
        """A part by its tensor's name: a rank has one."""
        return self.parts[index.fqn]


def write_state(folder: Path, spec: ModelSpec, state: State, parts: State) -> dict[str, FileFacts]:
    """Write this rank's parts; on rank 0, returns every rank's files."""
    writer = PartsWriter(folder, spec)
    many = dist.is_initialized()
    try:
        save(
            dict(state),
            storage_writer=writer,
            planner=_Planner(parts),
            process_group=saving_group() if many else None,
            no_dist=not many,
        )
    except CheckpointException as failure:
        raise _first(failure) from failure
    return writer.files


def read_into(folder: Path, state: State) -> None:
    """Fill tensors in place with what was saved under their names."""
    _hush()
    planner = DefaultLoadPlanner(flatten_state_dict=False)
    missing = sorted(state.keys() - PartsReader(folder).read_metadata().state_dict_metadata.keys())
    if missing:
        raise ResumeError(f"{folder}: has no {missing[0]}. Put it back, or give another checkpoint.")
    try:
        load(dict(state), storage_reader=PartsReader(folder), planner=planner, no_dist=not dist.is_initialized())
    except CheckpointException as failure:
        raise _first(failure) from failure


def saved_tensors(folder: Path, spec: ModelSpec) -> dict[str, TensorStorageMetadata]:
    """Types and shapes by name; refuses a folder that holds another model's."""
    if not is_saved(folder):
        raise ResumeError(f"{folder}: is not a folder that an engine saved, or not a whole one.")
    refuse_other_model(folder, spec)
    refuse_other_engine(folder, "torch")
    metadata = PartsReader(folder).read_metadata().state_dict_metadata
    return {name: facts for name, facts in metadata.items() if isinstance(facts, TensorStorageMetadata)}


def refuse_other_weights(folder: Path, ours: State, saved: Mapping[str, TensorStorageMetadata]) -> None:
    """A model is filled by names, and no name may be missing, left over or of another shape."""
    theirs = {name.removeprefix(WEIGHTS): facts.size for name, facts in saved.items() if name.startswith(WEIGHTS)}
    refuse_other_parameters(folder, theirs, {name: tensor.shape for name, tensor in ours.items()})


def under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same under longer names."""
    return {prefix + name: tensor for name, tensor in tensors.items()}


def random_state(rank: int) -> dict[str, Tensor]:
    """States of torch's own generators, on this rank."""
    states = {f"{rank:05}:cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        states[f"{rank:05}:cuda"] = torch.cuda.get_rng_state()
    return states


def load_random_state(folder: Path, saved: Mapping[str, TensorStorageMetadata], rank: int) -> None:
    """Put them back; a rank that was not there when they were saved takes those of rank 0."""
    wanted = {}
    for own, state in random_state(rank).items():
        first = f"{0:05}:{own.partition(':')[2]}"
        name = next((RANDOM + name for name in (own, first) if RANDOM + name in saved), None)
        if name is not None:
            wanted[name] = state
    read_into(folder, wanted)
    for name, state in wanted.items():
        (torch.cuda.set_rng_state if name.endswith("cuda") else torch.set_rng_state)(state)


def _copied(part: Tensor, room: Tensor | None) -> Tensor:
    """A copy on the CPU, in memory that is there already where it fits."""
    if room is None or (room.shape, room.dtype) != (part.shape, part.dtype):
        room = torch.empty_like(part, device="cpu", pin_memory=part.is_cuda)
    return room.copy_(part)


def _first(failure: CheckpointException) -> BaseException:
    """What went wrong on the first rank that something went wrong on."""
    rank, (error, _) = min(failure.failures.items())
    error.add_note(f"on rank {rank}")
    return error


def _hush() -> None:
    """Hide torch's warning that there is no process group: one process saves in the same form."""
    warnings.filterwarnings("ignore", message="torch.distributed is disabled")

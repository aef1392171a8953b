"""A Hugging Face folder's weights <-> those of a model of transformers, each rank reading its own part.

Files have the names that models are published with: of experts one matrix each, where the model has one tensor for all.
transformers' own mapping from the model's tensors back to files is asked with tensors that have no storage; what it
gives are views, whose place in our tensors is read off their strides. So any mapping that cuts and renames is known,
and none is written down here; one that computes is refused.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch import distributed as dist
from torch.distributed.tensor import DTensor
from torch.overrides import TorchFunctionMode
from transformers.core_model_loading import revert_weight_conversion

from trivium.engine.torch.checkpoint.grow import lay_rows
from trivium.engine.torch.parallel import local_part, whole
from trivium.engine.torch.transformers.make import make_inner
from trivium.engine.torch.transformers.model import TransformersModel
from trivium.engine.torch.transformers.probe import refusal
from trivium.errors import ConfigError, Problem
from trivium.files import readable_by_others
from trivium.model.foreign import write_config
from trivium.model.huggingface_files import (
    SHARD_BYTES,
    WEIGHT_KINDS,
    files_by_tensor,
    open_tensors,
    shards,
    write_index,
)
from trivium.model.spec import ModelSpec, RopeSpec


@dataclass(frozen=True, slots=True)
class FileTensor:
    """What a file has, as a part of one of the model's tensors."""

    owner: str  # the model's tensor
    where: tuple[slice, ...]  # its place in it
    shape: tuple[int, ...]  # as the file has it: without dimensions of one place


def file_tensors(spec: ModelSpec, names: Mapping[str, Tensor]) -> dict[str, FileTensor]:
    """What files have of these tensors of a model, by the files' names."""
    inner, _ = make_inner(spec)
    known = {name: tensor for name, tensor in inner.state_dict().items() if name in names}
    owners = {tensor.untyped_storage()._cdata: name for name, tensor in known.items()}
    with _NoCopies(), torch.no_grad():
        written = revert_weight_conversion(inner, known)
    found = {}
    for name, tensor in written.items():
        owner = owners.get(tensor.untyped_storage()._cdata)
        where = None if owner is None else _place(known[owner], tensor)
        if owner is None or where is None:
            raise refusal(spec, f"its files hold {name}, which transformers computes from other tensors")
        found[name] = FileTensor(owner, where, tuple(tensor.shape))
    return found


class _NoCopies(TorchFunctionMode):
    """Inside, parts of tensors stay views."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return args[0] if func is Tensor.contiguous else func(*args, **(kwargs or {}))


def _place(owner: Tensor, part: Tensor) -> tuple[slice, ...] | None:
    """Where a view lies in a tensor; None where it is not one block of it in the same order."""
    rest, sizes = int(part.storage_offset()), list(zip(part.shape, part.stride(), strict=True))
    where = []
    for size, stride in zip(owner.shape, owner.stride(), strict=True):
        start, rest = divmod(rest, stride) if stride else (0, rest)
        length = 1
        if sizes and (sizes[0][1] == stride and sizes[0][0] <= size):
            length = sizes.pop(0)[0]
        where.append(slice(start, start + length))
    block = owner[tuple(where)]
    same = (
        block.numel() == part.numel() and not sizes and block.reshape(-1)[:1].storage_offset() == part.storage_offset()
    )
    return tuple(where) if same else None


@torch.no_grad()
def read_weights(model: TransformersModel, folder: Path, there: ModelSpec) -> None:
    """Fill a model from a folder; what is missing, too much or of another shape is refused, all at once.

    `there` is the model that the folder has, with fewer tokens perhaps: the rows of others are their mean.
    """
    ours: dict[str, Tensor] = {**model.weights(), **model.constants()}
    tensors = file_tensors(there, ours)
    apart = model.vocab_rows() if there.vocab < model.spec.vocab else ()
    files = _fitting(folder, tensors, tied=model.tied)
    for path in sorted(set(files.values())):
        with open_tensors(path, "pt") as file:
            for name in sorted(name for name in tensors if files.get(name) == path):
                owner = tensors[name].owner
                if owner in apart:
                    lay_rows(ours[owner], file.get_tensor(name).float(), model.spec.vocab, averaged=True)
                else:
                    _copy_part(file, name, tensors[name], ours[owner])


def _copy_part(file: Any, name: str, tensor: FileTensor, ours: Tensor) -> None:
    """What this rank holds of a file's tensor."""
    local, own = local_part(ours)
    there, here, squeezed = [], [], []
    for held, placed in zip(own, tensor.where, strict=True):
        start, stop = max(held.start, placed.start), min(held.stop, placed.stop)
        if start >= stop:
            return
        there.append(slice(start - placed.start, stop - placed.start))
        here.append(slice(start - held.start, stop - held.start))
        squeezed.append(placed.stop - placed.start == 1)
    target = local[tuple(here)] if here else local
    kept = _kept_dimensions(tensor)
    found = file.get_slice(name)[tuple(there[dim] for dim in kept)] if kept else file.get_tensor(name)
    target.copy_(found.reshape(target.shape))


def _kept_dimensions(tensor: FileTensor) -> list[int]:
    """The dimensions of the owner that a file's tensor has too."""
    sizes = [each.stop - each.start for each in tensor.where]
    if len(sizes) == len(tensor.shape):
        return list(range(len(sizes)))
    return [dim for dim, size in enumerate(sizes) if size > 1]


def fitting_files(folder: Path, spec: ModelSpec) -> dict[str, Path]:
    """The file of every tensor of a model; what is missing, too much or of another shape is refused, all at once."""
    model = TransformersModel(spec)
    tensors = file_tensors(spec, {**model.weights(), **model.constants()})
    files = _fitting(folder, tensors, tied=model.tied)
    return {name: files[name] for name in tensors}


def _fitting(folder: Path, tensors: Mapping[str, FileTensor], *, tied: bool) -> dict[str, Path]:
    """The file of every tensor."""
    files = files_by_tensor(folder)
    problems = [Problem(str(folder), f"{name} is missing.") for name in tensors if name not in files]
    unread = {"lm_head.weight"} if tied else set()
    for name in sorted(files.keys() - tensors.keys() - unread):
        if not name.endswith("rotary_emb.inv_freq"):  # older checkpoints store what config.json has already
            problems.append(Problem(str(folder), f"{name} has no place in the model that config.json describes."))
    for path in sorted(set(files.values())):
        with open_tensors(path, "np") as file:
            for name in sorted(name for name in tensors if files.get(name) == path):
                found, kind = tuple(file.get_slice(name).get_shape()), file.get_slice(name).get_dtype()
                expected = tensors[name].shape
                if found != expected:
                    what = f"{name} is {list(found)}, but config.json asks for {list(expected)}."
                    problems.append(Problem(str(path), what))
                if kind not in WEIGHT_KINDS:
                    problems.append(Problem(str(path), f"{name} holds {kind}; weights are {', '.join(WEIGHT_KINDS)}."))
    if problems:
        raise ConfigError(problems)
    return files


def write_folder(
    model: TransformersModel, rope: RopeSpec, seq_len: int, folder: Path, shard_bytes: int = SHARD_BYTES
) -> None:
    """Weights as transformers would write them, in files of up to `shard_bytes`, and config.json.

    All ranks take part; rank 0 writes, and holds one file's weights at a time.
    """
    ours: dict[str, Tensor] = {**model.weights(), **model.constants()}
    writes = not any(isinstance(tensor, DTensor) for tensor in ours.values()) or dist.get_rank() == 0
    tensors = dict(sorted(file_tensors(model.spec, ours).items(), key=lambda item: item[1].owner))
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    files = shards(shapes, 4, shard_bytes)
    if writes:
        folder.mkdir(parents=True, exist_ok=True)
        write_index(folder, files, shapes, 4, str)
    gathered: tuple[str, Tensor | None] = ("", None)
    for file, names in files.items():
        on_cpu = {}
        for name in names:
            tensor = tensors[name]
            if gathered[0] != tensor.owner:  # a tensor of all experts is gathered once
                gathered = (tensor.owner, whole(ours[tensor.owner].detach()))
            assert gathered[1] is not None
            if writes:
                on_cpu[name] = gathered[1][tensor.where].reshape(tensor.shape).float().cpu().clone()
        if writes:
            with readable_by_others(folder / file):
                save_file(on_cpu, folder / file, metadata={"format": "pt"})
    if writes:
        write_config(folder, model.spec, rope, seq_len, model.architecture)

"""Tensors' parts <-> files, as torch.distributed.checkpoint asks for them: safetensors and JSON, never a pickle.

    rank-00000.safetensors    what one rank wrote: of each tensor one part at most, under the tensor's name
    tensors.json              every tensor's type and shape, and where each of its parts begins, and whose file has it

Each rank writes its own file in one pass, hashes it as it goes and flushes it; rank 0 adds tensors.json and the
model's shape when all are whole, before any rank hears that the save is done. Reading touches only the bytes that a
rank needs, whatever ranks wrote them.
"""

import json
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, ReadItem, SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.futures import Future

from trivium.errors import ResumeError
from trivium.files import FileFacts, read_json, write_flushed
from trivium.model.folder import TORCH_INDEX, write_spec
from trivium.model.spec import ModelSpec

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
CORRUPT = "is corrupt: truncated, or changed since it was written. Put it back."
DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}


class _UsedOnce:
    """What torch asks of any storage: a folder is given to the constructor, used once, and plans stay as they are."""

    def reset(self, checkpoint_id: Any = None) -> None:
        """Nothing is to be forgotten."""

    def prepare_local_plan(self, plan: Any) -> Any:
        return plan

    def prepare_global_plan(self, plans: Any) -> Any:
        return plans

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        return False


class PartsWriter(_UsedOnce, StorageWriter):
    """Writes one state into one folder."""

    def __init__(self, folder: Path, spec: ModelSpec) -> None:
        self.folder = folder
        self.spec = spec
        self.files: dict[str, FileFacts] = {}  # on rank 0, once all are written
        self._rank = 0

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Every rank makes the folder, which may be another machine's."""
        self._rank = kwargs.get("rank", 0)
        self.folder.mkdir(parents=True, exist_ok=True)

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        parts: dict[str, Any] = {item.index.fqn: planner.resolve_data(item) for item in plan.items}
        assert len(parts) == len(plan.items), "a rank has one part of a tensor"
        facts = write_tensors(self.folder / _file_name(self._rank), parts) if parts else None
        written: Future[list[WriteResult]] = Future()
        written.set_result([WriteResult(item.index, 0, (self._rank, facts)) for item in plan.items])
        return written

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """On rank 0, when every rank has written: which part is in which file."""
        rank_of = {result.index: result.storage_data[0] for rank in results for result in rank}
        self.files = {_file_name(rank[0].storage_data[0]): rank[0].storage_data[1] for rank in results if rank}
        tensors = {
            name: {
                "dtype": DTYPE_NAMES[facts.properties.dtype],
                "shape": list(facts.size),
                "parts": sorted(
                    [list(part.offsets), list(part.sizes), rank_of[MetadataIndex(name, part.offsets)]]
                    for part in facts.chunks
                ),
            }
            for name, facts in sorted(metadata.state_dict_metadata.items())
            if isinstance(facts, TensorStorageMetadata)
        }
        (self.folder / TORCH_INDEX).write_text(json.dumps({"tensors": tensors}) + "\n")
        write_spec(self.folder, self.spec)


class PartsReader(_UsedOnce, StorageReader):
    """Reads what a rank needs from one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._rank_of: dict[MetadataIndex, int] = {}

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Every tensor's type, shape and parts."""
        tensors: dict[str, TensorStorageMetadata | BytesStorageMetadata] = {}
        try:
            for name, tensor in read_json(self.folder / TORCH_INDEX)["tensors"].items():
                parts = [ChunkStorageMetadata(torch.Size(at), torch.Size(size)) for at, size, _ in tensor["parts"]]
                if not all(_is_part(part, tensor["shape"]) for part in parts):
                    raise ValueError("a part is not within its tensor")
                properties = TensorProperties(dtype=DTYPES[tensor["dtype"]])
                tensors[name] = TensorStorageMetadata(properties, torch.Size(tensor["shape"]), parts)
                self._rank_of |= {MetadataIndex(name, at): int(rank) for at, _, rank in tensor["parts"]}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            raise ResumeError(f"{self.folder / TORCH_INDEX}: {CORRUPT}") from None
        return Metadata(tensors)

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Nothing to do."""

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Copy the planned stretches into place, file by file."""
        by_rank: dict[int, list[ReadItem]] = {}
        for item in plan.items:
            by_rank.setdefault(self._rank_of[item.storage_index], []).append(item)
        for rank, items in sorted(by_rank.items()):
            path = self.folder / _file_name(rank)
            try:
                with safe_open(path, framework="pt") as file:
                    for item in items:
                        _copy(file, item, planner)
            except (SafetensorError, OSError):
                raise ResumeError(f"{path}: {CORRUPT}") from None
        read: Future[None] = Future()
        read.set_result(None)
        return read


def _is_part(part: ChunkStorageMetadata, shape: list[int]) -> bool:
    bounds = list(zip(part.offsets, part.sizes, shape, strict=True))
    return all(start >= 0 and size >= 0 and start + size <= whole for start, size, whole in bounds)


def _copy(file: Any, item: ReadItem, planner: LoadPlanner) -> None:
    """One planned stretch of a tensor, into place."""
    target = planner.resolve_tensor(item).detach()
    stretch = zip(item.storage_offsets, item.lengths, strict=True)
    where = tuple(slice(start, start + length) for start, length in stretch)
    name = item.storage_index.fqn
    target.copy_(file.get_slice(name)[where] if where else file.get_tensor(name))
    planner.commit_tensor(item, target)


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> FileFacts:
    """A safetensors file, flushed, without a copy of all of it in memory; its size and hash."""
    # The widest types come first, so that every tensor begins at a multiple of its own width.
    ordered = sorted(tensors.items(), key=lambda pair: (-pair[1].element_size(), pair[0]))
    header: dict[str, Any] = {}
    end = 0
    for name, tensor in ordered:
        begin, end = end, end + tensor.nbytes
        dtype = DTYPE_NAMES[tensor.dtype]
        header[name] = {"dtype": dtype, "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    head = (len(text).to_bytes(8, "little"), text)
    return write_flushed(path, chain(head, (_bytes(tensor) for _, tensor in ordered)))


def _bytes(tensor: Tensor) -> Any:
    """A tensor's bytes, shared where it lies on the CPU in one piece."""
    flat = tensor.cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data if len(flat) else b""


def _file_name(rank: int) -> str:
    return f"rank-{rank:05}.safetensors"

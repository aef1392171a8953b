"""Tensors' parts <-> files: safetensors and JSON, never a pickle.

    rank-00000.safetensors    what one rank wrote: of each tensor one part at most, under the tensor's name
    tensors.json              every tensor's type and shape, and where each of its parts begins, and whose file has it

In tensors.json tensors of one layout share a table of parts, by its number in `layouts`; where `parts` is a list, as
earlier versions wrote it, it is the table itself. Reading touches only the bytes that a rank needs, whoever wrote
them, and opens each file once.
"""

import json
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from torch import Tensor

from trivium.engine.torch.checkpoint.parts import Parts, SavedTensor
from trivium.engine.torch.parallel import local_part
from trivium.errors import ResumeError
from trivium.files import FileFacts, read_json, write_flushed
from trivium.model.folder import TORCH_INDEX

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

Index = Mapping[str, SavedTensor]
"""What a folder has, by name."""
Stretch = tuple[str, Tensor, tuple[slice, ...]]
"""A tensor's name, the memory to fill, and which of a file's part of the tensor to fill it with."""


def write_index(folder: Path, tensors: Index) -> None:
    """Leave beside the files what is in them."""
    layouts = list({id(tensor.parts): tensor.parts for tensor in tensors.values()}.values())
    number_of = {id(parts): number for number, parts in enumerate(layouts)}
    index = {
        "layouts": [_rows(parts) for parts in layouts],
        "tensors": {
            name: {
                "dtype": DTYPE_NAMES[tensor.dtype],
                "shape": list(tensor.shape),
                "parts": number_of[id(tensor.parts)],
            }
            for name, tensor in sorted(tensors.items())
        },
    }
    (folder / TORCH_INDEX).write_text(json.dumps(index) + "\n")


def read_index(folder: Path) -> dict[str, SavedTensor]:
    """Every tensor's type, shape and parts."""
    try:
        index = read_json(folder / TORCH_INDEX)
        layouts = [_parts(rows) for rows in index.get("layouts", ())]
        return {name: _saved(tensor, layouts) for name, tensor in index["tensors"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError):
        raise ResumeError(f"{folder / TORCH_INDEX}: {CORRUPT}") from None


def read_tensors(folder: Path, index: Index, state: Mapping[str, Tensor]) -> None:
    """Fill this rank's parts of tensors with what was saved under their names, file by file."""
    wanted: dict[int, list[Stretch]] = {}
    for name, tensor in state.items():
        held, where = local_part(tensor.detach())
        if not _find(name, index[name].parts, held, where, wanted):
            raise ResumeError(f"{folder / TORCH_INDEX}: {CORRUPT}")
    for rank, stretches in sorted(wanted.items()):
        path = folder / file_name(rank)
        try:
            with safe_open(path, framework="pt") as file:
                for name, target, inside in stretches:
                    found = file.get_slice(name)[inside] if inside else file.get_tensor(name)
                    if found.shape != target.shape:  # a copy would repeat a row
                        raise ResumeError(f"{path}: {CORRUPT}")
                    target.copy_(found)
        except (SafetensorError, OSError):
            raise ResumeError(f"{path}: {CORRUPT}") from None


def _find(name: str, parts: Parts, held: Tensor, where: tuple[slice, ...], wanted: dict[int, list[Stretch]]) -> bool:
    """Add to `wanted` what fills a held part, which lies at `where`; False where the saved parts do not cover it."""
    first, stop = np.array([(each.start, each.stop) for each in where], np.int64).reshape(-1, 2).T
    begin, end = np.maximum(parts.starts, first), np.minimum(parts.starts + parts.sizes, stop)
    (hits,) = np.nonzero((begin < end).all(axis=1))
    for hit in hits.tolist():
        target = held[_slices(begin[hit] - first, end[hit] - first)]
        inside = _slices(begin[hit] - parts.starts[hit], end[hit] - parts.starts[hit])
        wanted.setdefault(int(parts.ranks[hit]), []).append((name, target, inside))
    return int((end - begin)[hits].prod(axis=1).sum()) == held.numel()


def _slices(first: NDArray[np.int64], stop: NDArray[np.int64]) -> tuple[slice, ...]:
    return tuple(slice(*pair) for pair in zip(first.tolist(), stop.tolist(), strict=True))


def _rows(parts: Parts) -> list[list[Any]]:
    """As JSON has them: `[start, size, rank]`."""
    columns = zip(parts.starts.tolist(), parts.sizes.tolist(), parts.ranks.tolist(), strict=True)
    return [list(row) for row in columns]


def _parts(rows: list[list[Any]]) -> Parts:
    starts, sizes = (np.array([row[column] for row in rows], np.int64) for column in (0, 1))
    return Parts(starts, sizes, np.array([int(row[2]) for row in rows], np.int64))


def _saved(tensor: Mapping[str, Any], layouts: list[Parts]) -> SavedTensor:
    """What the index has of a tensor; ValueError where a part is not within it."""
    shape, rows = torch.Size(tensor["shape"]), tensor["parts"]
    parts = _parts(rows) if isinstance(rows, list) else layouts[rows]
    starts, sizes = (each.reshape(len(parts.ranks), len(shape)) for each in (parts.starts, parts.sizes))
    if (starts < 0).any() or (sizes < 0).any() or (starts + sizes > np.array(shape, np.int64)).any():
        raise ValueError("a part is not within its tensor")
    return SavedTensor(DTYPES[tensor["dtype"]], shape, Parts(starts, sizes, parts.ranks))


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


def file_name(rank: int) -> str:
    return f"rank-{rank:05}.safetensors"


def _bytes(tensor: Tensor) -> Any:
    """A tensor's bytes, shared where it lies on the CPU in one piece."""
    flat = tensor.cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data if len(flat) else b""

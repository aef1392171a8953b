"""Which file of a Hugging Face folder holds which tensor, and whether they fit a model; no framework, no pickle."""

import json
import math
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from trivium.errors import ConfigError, Problem
from trivium.files import is_within, open_regular
from trivium.model.families.family import Family
from trivium.model.huggingface import read_table
from trivium.model.spec import ModelSpec
from trivium.paths import boundary

WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
WEIGHT_KINDS = ("F64", "F32", "F16", "BF16")
KIND_BITS = {
    "F64": 64,
    "I64": 64,
    "U64": 64,
    "F32": 32,
    "I32": 32,
    "U32": 32,
    "F16": 16,
    "BF16": 16,
    "I16": 16,
    "U16": 16,
}
KIND_BITS |= dict.fromkeys(("F8_E4M3", "F8_E5M2", "F8_E8M0", "I8", "U8", "BOOL"), 8) | {"F4": 4}
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
PICKLE = "is a pickle, which may run code when it is read, and is never opened. Save the weights as safetensors."
PICKLE_STARTS = (b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")  # torch.save's zip, and a bare one
IS_STORED_TWICE = "another file has it, which the index names"
SHARD_BYTES = 5_000_000_000
ROUNDING = 0.01  # of a constant that a file has in bfloat16

Shape = Sequence[int]


def cut_shape(name: str, shape: Shape, vocab: int) -> list[int]:
    """A parameter's shape as files have it: without the rows that only pad the vocabulary."""
    rows, *rest = shape
    return [vocab if name in ("embedding.weight", "unembedding.weight") else rows, *rest]


def files_by_tensor(folder: Path) -> dict[str, Path]:
    """The file of every tensor, by its own name."""
    index, single = folder / INDEX_FILE, folder / WEIGHTS_FILE
    if index.exists():
        files = _indexed(folder, index)
        missing = sorted({path for path in files.values() if not path.exists()})
        if missing:
            raise ConfigError([Problem(str(path), f"is missing, but {INDEX_FILE} names it.") for path in missing])
        return files
    if single.exists():
        with open_tensors(single, "np") as file:
            return dict.fromkeys(file.keys(), single)
    pickles = pickles_in(folder)
    if pickles:
        raise ConfigError([Problem(str(path), PICKLE) for path in pickles])
    what = f"has neither {WEIGHTS_FILE} nor {INDEX_FILE}. Copy the weights there, as safetensors."
    raise ConfigError([Problem(str(folder), what)])


def pickles_in(folder: Path) -> list[Path]:
    """Files of weights that are pickles, by their names: none is ever opened."""
    return sorted(path for path in folder.iterdir() if path.suffix in PICKLES and path.is_file())


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor as the header of its file describes it."""

    name: str
    shape: list[int]
    kind: str  # such as BF16
    path: Path

    @property
    def bytes(self) -> int | None:
        """None of a kind that is not known here."""
        bits = KIND_BITS.get(self.kind)
        return None if bits is None else math.prod(self.shape) * bits // 8


def tensors_of(folder: Path) -> Iterator[StoredTensor]:
    """Every tensor of the files that a folder names, also where another file has it too; headers alone are read."""
    for path in sorted(set(files_by_tensor(folder).values())):
        with open_tensors(path, "np") as file:
            for name in sorted(file.keys()):
                part = file.get_slice(name)
                yield StoredTensor(name, list(part.get_shape()), str(part.get_dtype()), path)


def _indexed(folder: Path, index: Path) -> dict[str, Path]:
    """The file of every tensor, as an index names it: files below the folder, and no others."""
    named = read_table(index).get("weight_map")
    if not isinstance(named, dict) or not all(isinstance(file, str) for file in named.values()):
        raise ConfigError([Problem(str(index), "has no weight_map from tensors to files. Copy it again.")])
    outside = sorted({file for file in named.values() if "\0" in file or not is_within(file)})
    if outside:
        what = "which is not a file below the folder. Put it there, and its name."
        raise ConfigError([Problem(str(index), f"names {json.dumps(file)}, {what}") for file in outside])
    within = boundary(folder)
    for file in set(named.values()):
        if not (folder / file).resolve().is_relative_to(within):
            what = f"leads out of {folder}, to {(folder / file).resolve()}. Put the file itself there."
            raise ConfigError([Problem(str(folder / file), what)])
    return {name: folder / file for name, file in named.items()}


@contextmanager
def open_tensors(path: Path, framework: str) -> Iterator[Any]:
    """A safetensors file; one that is truncated, or lacks a tensor, is one error that names it."""
    try:
        os.close(open_regular(path))
    except ValueError as reason:
        raise ConfigError([Problem(str(path), f"cannot be read: {reason}. Put the file itself there.")]) from None
    if _is_pickle(path):
        raise ConfigError([Problem(str(path), PICKLE)])
    try:
        with safe_open(path, framework=framework) as file:
            yield file
    except (SafetensorError, OSError, ValueError) as error:
        what = f"cannot be read as safetensors: {str(error).rstrip('.')}. It is truncated or damaged: copy it again."
        raise ConfigError([Problem(str(path), what)]) from error


def _is_pickle(path: Path) -> bool:
    """By its first bytes; safetensors have their header's length there, which may look the same, and then a brace."""
    with open(path, "rb") as file:
        begins = file.read(9)
    return begins.startswith(PICKLE_STARTS) and not begins.endswith(b"{")


def fitting_files(folder: Path, shapes: Mapping[str, Shape], family: Family, spec: ModelSpec) -> dict[str, Path]:
    """The file of every parameter, by our name; what is missing, too much or of another shape is refused, all at once.

    `shapes` are those that files have.
    """
    files = files_by_tensor(folder)
    ours = {family.their_name(name): list(shape) for name, shape in shapes.items()}
    problems = [Problem(str(folder), f"{name} is missing.") for name in ours if name not in files]
    constants = family.constants(spec)
    known = {*ours, *constants, *([family.their_name("unembedding.weight")] if spec.tied_embeddings else [])}
    for name in constants.keys() & files.keys():
        found = _number(files[name], name)
        if found is None or abs(found - constants[name]) > ROUNDING * abs(constants[name]):
            problems.append(Problem(str(files[name]), f"{name} is {found}, and {constants[name]:g} is built."))
    for name in sorted(files.keys() - known):
        if not name.endswith("rotary_emb.inv_freq"):  # older checkpoints store what config.json has already
            problems.append(Problem(str(folder), f"{name} has no place in the model that config.json describes."))
    for path in sorted(set(files.values())):
        with open_tensors(path, "np") as file:
            for name in sorted(name for name in ours if files.get(name) == path):
                found, kind = file.get_slice(name).get_shape(), file.get_slice(name).get_dtype()
                if found != ours[name]:
                    problems.append(Problem(str(path), f"{name} is {found}, but config.json asks for {ours[name]}."))
                if kind not in WEIGHT_KINDS:
                    problems.append(Problem(str(path), f"{name} holds {kind}; weights are {', '.join(WEIGHT_KINDS)}."))
    if problems:
        raise ConfigError(problems)
    return {name: files[family.their_name(name)] for name in shapes}


def _number(path: Path, name: str) -> float | None:
    """A tensor of one number; None where it holds others. bfloat16, which NumPy lacks, is float32 without its end."""
    with open_tensors(path, "np") as file:
        part = file.get_slice(name)
        if math.prod(part.get_shape()) != 1:
            return None
        if part.get_dtype() != "BF16":
            return float(file.get_tensor(name).reshape(()))
    with path.open("rb") as raw:
        size = int.from_bytes(raw.read(8), "little")
        header = json.loads(raw.read(size))
        raw.seek(8 + size + header[name]["data_offsets"][0])
        return float(np.frombuffer(b"\0\0" + raw.read(2), "<f4")[0])


def shards(shapes: Mapping[str, Shape], element_bytes: int, shard_bytes: int) -> dict[str, list[str]]:
    """Names of tensors by the file that they go to."""
    parts: list[list[str]] = [[]]
    room = shard_bytes
    for name, shape in shapes.items():
        size = math.prod(shape) * element_bytes
        if parts[-1] and size > room:
            parts.append([])
            room = shard_bytes
        parts[-1].append(name)
        room -= size
    if len(parts) == 1:
        return {WEIGHTS_FILE: parts[0]}
    return {f"model-{number:05}-of-{len(parts):05}.safetensors": names for number, names in enumerate(parts, 1)}


def write_index(
    folder: Path,
    files: Mapping[str, list[str]],
    shapes: Mapping[str, Shape],
    element_bytes: int,
    written_as: Callable[[str], str],
    constants: Collection[str] = (),
) -> None:
    """Where the weights take several files, the index of which file has which; constants are in the first."""
    if len(files) > 1:
        numbers = sum(math.prod(shape) for shape in shapes.values()) + len(constants)
        index = {
            "metadata": {"total_size": numbers * element_bytes},
            "weight_map": {written_as(name): file for file, names in files.items() for name in names}
            | dict.fromkeys(constants, next(iter(files))),
        }
        (folder / INDEX_FILE).write_text(json.dumps(index, indent=2) + "\n")

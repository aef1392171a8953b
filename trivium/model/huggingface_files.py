"""Which file of a Hugging Face folder holds which tensor, and whether they fit a model; no framework, no pickle."""

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from trivium.errors import ConfigError, Problem
from trivium.files import is_within, open_regular
from trivium.model.huggingface import read_table, their_name
from trivium.paths import boundary

WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
WEIGHT_KINDS = ("F64", "F32", "F16", "BF16")
SHARD_BYTES = 5_000_000_000

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
    what = f"has neither {WEIGHTS_FILE} nor {INDEX_FILE}. Weights in .bin files are pickles: save them as safetensors."
    raise ConfigError([Problem(str(folder), what)])


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
    try:
        with safe_open(path, framework=framework) as file:
            yield file
    except (SafetensorError, OSError, ValueError) as error:
        what = f"cannot be read as safetensors: {str(error).rstrip('.')}. It is truncated or damaged: copy it again."
        raise ConfigError([Problem(str(path), what)]) from error


def fitting_files(folder: Path, shapes: Mapping[str, Shape], *, tied: bool) -> dict[str, Path]:
    """The file of every parameter, by our name; what is missing, too much or of another shape is refused, all at once.

    `shapes` are those that files have.
    """
    files = files_by_tensor(folder)
    ours = {their_name(name): list(shape) for name, shape in shapes.items()}
    problems = [Problem(str(folder), f"{name} is missing.") for name in ours if name not in files]
    known = ours.keys() | ({their_name("unembedding.weight")} if tied else set())
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
    return {name: files[their_name(name)] for name in shapes}


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
    written_as: Callable[[str], str] = their_name,
) -> None:
    """Where the weights take several files, the index of which file has which."""
    if len(files) > 1:
        index = {
            "metadata": {"total_size": sum(math.prod(shape) for shape in shapes.values()) * element_bytes},
            "weight_map": {written_as(name): file for file, names in files.items() for name in names},
        }
        (folder / INDEX_FILE).write_text(json.dumps(index, indent=2) + "\n")

"""Which file of a Hugging Face folder holds which tensor, and whether they fit a model; no framework, no pickle."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from safetensors import safe_open

from trivium.errors import ConfigError, Problem
from trivium.model.huggingface import their_name

WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
SHARD_BYTES = 5_000_000_000

Shape = Sequence[int]


def cut_shape(name: str, shape: Shape, vocab: int) -> list[int]:
    """A parameter's shape as files have it: without the rows that only pad the vocabulary."""
    rows, *rest = shape
    return [vocab if name in ("embedding.weight", "unembedding.weight") else rows, *rest]


def files_by_tensor(folder: Path) -> dict[str, Path]:
    """The file of every tensor, by its own name."""
    index, single = folder / INDEX_FILE, folder / WEIGHTS_FILE
    if index.is_file():
        files = {name: folder / file for name, file in json.loads(index.read_text())["weight_map"].items()}
        missing = sorted({path for path in files.values() if not path.is_file()})
        if missing:
            raise ConfigError([Problem(str(path), f"is missing, but {INDEX_FILE} names it.") for path in missing])
        return files
    if single.is_file():
        with safe_open(single, framework="np") as file:
            return dict.fromkeys(file.keys(), single)
    what = f"has neither {WEIGHTS_FILE} nor {INDEX_FILE}. Weights in .bin files are pickles: save them as safetensors."
    raise ConfigError([Problem(str(folder), what)])


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
        with safe_open(path, framework="np") as file:
            for name in sorted(name for name in ours if files.get(name) == path):
                found = file.get_slice(name).get_shape()
                if found != ours[name]:
                    problems.append(Problem(str(path), f"{name} is {found}, but config.json asks for {ours[name]}."))
    if problems:
        raise ConfigError(problems)
    return {name: files[their_name(name)] for name in shapes}


def shards(shapes: Mapping[str, Shape], element_bytes: int, shard_bytes: int) -> dict[str, list[str]]:
    """Our names of parameters by the file that they go to."""
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


def write_index(folder: Path, files: Mapping[str, list[str]], shapes: Mapping[str, Shape], element_bytes: int) -> None:
    """Where the weights take several files, the index of which file has which."""
    if len(files) > 1:
        index = {
            "metadata": {"total_size": sum(math.prod(shape) for shape in shapes.values()) * element_bytes},
            "weight_map": {their_name(name): file for file, names in files.items() for name in names},
        }
        (folder / INDEX_FILE).write_text(json.dumps(index, indent=2) + "\n")

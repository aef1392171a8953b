"""A Hugging Face folder's weights <-> a decoder's, one tensor at a time; safetensors only, never a pickle."""

import json
import math
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch import distributed as dist
from torch.distributed.tensor import DTensor

from trivium.engine.huggingface import their_name, write_config
from trivium.engine.spec import RopeSpec
from trivium.engine.torch.model import Decoder
from trivium.engine.torch.parallel import local_part, whole
from trivium.errors import ConfigError, Problem

WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
SHARD_BYTES = 5_000_000_000


@torch.no_grad()
def read_weights(model: Decoder, folder: Path) -> None:
    """Fill a decoder from a folder; what is missing, too much or of another shape is refused, all at once."""
    files = _file_of_each_tensor(folder)
    ours = {their_name(name): parameter for name, parameter in model.named_parameters()}
    shapes = {name: _cut_shape(parameter, model.spec.vocab, name) for name, parameter in ours.items()}
    problems = [Problem(str(folder), f"{name} is missing.") for name in shapes if name not in files]
    tied = {their_name("unembedding.weight")} if model.spec.tied_embeddings else set()
    for name in sorted(files.keys() - shapes.keys() - tied):
        if not name.endswith("rotary_emb.inv_freq"):  # older checkpoints store what config.json says already
            problems.append(Problem(str(folder), f"{name} has no place in the model that config.json describes."))
    for path in sorted(set(files.values())):
        with safe_open(path, framework="pt") as file:
            for name in sorted(name for name in shapes if files.get(name) == path):
                tensor = file.get_slice(name)
                if tensor.get_shape() != shapes[name]:
                    what = f"{name} is {tensor.get_shape()}, but config.json asks for {shapes[name]}."
                    problems.append(Problem(str(path), what))
                else:
                    local, where = local_part(ours[name])
                    found = tensor[where]  # what lies beyond the file's end is the padded vocabulary's
                    local[: len(found)].copy_(found)
    if problems:
        raise ConfigError(problems)


def write_folder(model: Decoder, rope: RopeSpec, seq_len: int, folder: Path, shard_bytes: int = SHARD_BYTES) -> None:
    """Weights without the padded vocabulary, in as many files as their size asks for, and config.json.

    All ranks take part; rank 0 writes, and holds one file's weights at a time.
    """
    writes = not isinstance(next(model.parameters()), DTensor) or dist.get_rank() == 0
    parameters = {their_name(name): parameter.detach() for name, parameter in model.named_parameters()}
    bytes_of = {
        name: math.prod(_cut_shape(parameter, model.spec.vocab, name)) * parameter.element_size()
        for name, parameter in parameters.items()
    }
    shards = _shards(bytes_of, shard_bytes)
    if writes:
        folder.mkdir(parents=True, exist_ok=True)
        _write_index(folder, shards, bytes_of)
    for file, names in shards.items():
        on_cpu = {}
        for name in names:
            tensor = whole(parameters[name])
            if writes:
                (rows, *_) = _cut_shape(tensor, model.spec.vocab, name)
                on_cpu[name] = tensor[:rows].cpu().contiguous()
        if writes:
            save_file(on_cpu, folder / file, metadata={"format": "pt"})
    if writes:
        write_config(folder, model.spec, rope, seq_len)


def _shards(bytes_of: dict[str, int], shard_bytes: int) -> dict[str, list[str]]:
    """Names of tensors by the file they go to."""
    shards: list[list[str]] = [[]]
    room = shard_bytes
    for name, size in bytes_of.items():
        if shards[-1] and size > room:
            shards.append([])
            room = shard_bytes
        shards[-1].append(name)
        room -= size
    if len(shards) == 1:
        return {WEIGHTS_FILE: shards[0]}
    return {f"model-{number:05}-of-{len(shards):05}.safetensors": names for number, names in enumerate(shards, 1)}


def _write_index(folder: Path, shards: dict[str, list[str]], bytes_of: dict[str, int]) -> None:
    if len(shards) > 1:
        index = {
            "metadata": {"total_size": sum(bytes_of.values())},
            "weight_map": {name: file for file, names in shards.items() for name in names},
        }
        (folder / INDEX_FILE).write_text(json.dumps(index, indent=2) + "\n")


def _file_of_each_tensor(folder: Path) -> dict[str, Path]:
    index, single = folder / INDEX_FILE, folder / WEIGHTS_FILE
    if index.is_file():
        files = {name: folder / file for name, file in json.loads(index.read_text())["weight_map"].items()}
        missing = sorted({path for path in files.values() if not path.is_file()})
        if missing:
            raise ConfigError([Problem(str(path), f"is missing, but {INDEX_FILE} names it.") for path in missing])
        return files
    if single.is_file():
        with safe_open(single, framework="pt") as file:
            return dict.fromkeys(file.keys(), single)
    what = f"has neither {WEIGHTS_FILE} nor {INDEX_FILE}. Weights in .bin files are pickles: save them as safetensors."
    raise ConfigError([Problem(str(folder), what)])


def _cut_shape(tensor: Tensor, vocab: int, name: str) -> list[int]:
    """Without the rows that only pad the vocabulary."""
    rows, *rest = tensor.shape
    return [vocab if name in (their_name("embedding.weight"), their_name("unembedding.weight")) else rows, *rest]

"""A Hugging Face folder's weights <-> a decoder's, one tensor at a time; safetensors only, never a pickle."""

import json
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from trivium.engine.huggingface import their_name, write_config
from trivium.engine.spec import RopeSpec
from trivium.engine.torch.model import Decoder
from trivium.errors import ConfigError, Problem

WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
SHARD_BYTES = 5_000_000_000


@torch.no_grad()
def read_weights(model: Decoder, folder: Path) -> None:
    """Fill a decoder from a folder; what is missing, too much or of another shape is refused, all at once."""
    files = _file_of_each_tensor(folder)
    ours = {their_name(name): parameter for name, parameter in model.named_parameters()}
    shapes = {name: _cut(parameter, model.spec.vocab, name).shape for name, parameter in ours.items()}
    problems = [Problem(str(folder), f"{name} is missing.") for name in shapes if name not in files]
    tied = {their_name("unembedding.weight")} if model.spec.tied_embeddings else set()
    for name in sorted(files.keys() - shapes.keys() - tied):
        if not name.endswith("rotary_emb.inv_freq"):  # older checkpoints store what config.json says already
            problems.append(Problem(str(folder), f"{name} has no place in the model that config.json describes."))
    for path in sorted(set(files.values())):
        with safe_open(path, framework="pt") as file:
            for name in sorted(name for name in shapes if files.get(name) == path):
                tensor = file.get_tensor(name)
                if tensor.shape != shapes[name]:
                    what = f"{name} is {list(tensor.shape)}, but config.json asks for {list(shapes[name])}."
                    problems.append(Problem(str(path), what))
                else:
                    _cut(ours[name], model.spec.vocab, name).copy_(tensor)
    if problems:
        raise ConfigError(problems)


def write_folder(model: Decoder, rope: RopeSpec, seq_len: int, folder: Path, shard_bytes: int = SHARD_BYTES) -> None:
    """Weights without the padded vocabulary, in as many files as their size asks for, and config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    shards: list[dict[str, Tensor]] = [{}]
    room = shard_bytes
    for name, parameter in model.named_parameters():
        tensor = _cut(parameter.detach(), model.spec.vocab, their_name(name))
        if shards[-1] and tensor.nbytes > room:
            shards.append({})
            room = shard_bytes
        shards[-1][their_name(name)] = tensor
        room -= tensor.nbytes
    names = [WEIGHTS_FILE]
    if len(shards) > 1:
        names = [f"model-{number:05}-of-{len(shards):05}.safetensors" for number in range(1, len(shards) + 1)]
        index = {
            "metadata": {"total_size": sum(tensor.nbytes for shard in shards for tensor in shard.values())},
            "weight_map": {name: file for file, shard in zip(names, shards, strict=True) for name in shard},
        }
        (folder / INDEX_FILE).write_text(json.dumps(index, indent=2) + "\n")
    for file, shard in zip(names, shards, strict=True):
        on_cpu = {name: tensor.cpu().contiguous() for name, tensor in shard.items()}
        save_file(on_cpu, folder / file, metadata={"format": "pt"})
    write_config(folder, model.spec, rope, seq_len)


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


def _cut(tensor: Tensor, vocab: int, name: str) -> Tensor:
    """Without the rows that only pad the vocabulary."""
    return tensor[:vocab] if name in (their_name("embedding.weight"), their_name("unembedding.weight")) else tensor

"""A Hugging Face folder's weights <-> a decoder's, one tensor at a time; safetensors only, never a pickle."""

from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import distributed as dist
from torch.distributed.tensor import DTensor

from trivium.engine.torch.model import Decoder
from trivium.engine.torch.parallel import local_part, whole
from trivium.files import readable_by_others
from trivium.model.families.table import family_of
from trivium.model.huggingface import read_family, write_config
from trivium.model.huggingface_files import SHARD_BYTES, cut_shape, fitting_files, open_tensors, shards, write_index
from trivium.model.spec import RopeSpec


@torch.no_grad()
def read_weights(model: Decoder, folder: Path) -> None:
    """Fill a decoder from a folder; what is missing, too much or of another shape is refused, all at once."""
    ours = dict(model.named_parameters())
    family = read_family(folder)
    files = fitting_files(folder, _shapes(model), family, model.spec)
    for path in sorted(set(files.values())):
        with open_tensors(path, "pt") as file:
            for name in sorted(name for name in ours if files[name] == path):
                local, where = local_part(ours[name])
                found = file.get_slice(family.their_name(name))[where]  # what lies beyond the end pads the vocabulary
                local[: len(found)].copy_(found)
                if family.added(name):
                    local += family.added(name)
                local[len(found) :].zero_()


def write_folder(model: Decoder, rope: RopeSpec, seq_len: int, folder: Path, shard_bytes: int = SHARD_BYTES) -> None:
    """Weights without the padded vocabulary, in files of up to `shard_bytes`, and config.json.

    All ranks take part; rank 0 writes, and holds one file's weights at a time.
    """
    family = family_of(model.spec, rope)
    constants = {name: torch.tensor(value) for name, value in family.constants(model.spec).items()}
    writes = not isinstance(next(model.parameters()), DTensor) or dist.get_rank() == 0
    parameters = {name: parameter.detach() for name, parameter in model.named_parameters()}
    shapes, element_bytes = _shapes(model), next(iter(parameters.values())).element_size()
    files = shards(shapes, element_bytes, shard_bytes)
    if writes:
        folder.mkdir(parents=True, exist_ok=True)
        write_index(folder, files, shapes, element_bytes, family, model.spec)
    for file, names in files.items():
        on_cpu, constants = constants, {}  # which are in the first one
        for name in names:
            tensor = whole(parameters[name])
            if writes:
                theirs = tensor - family.added(name) if family.added(name) else tensor
                on_cpu[family.their_name(name)] = theirs[: shapes[name][0]].cpu().contiguous()
        if writes:
            with readable_by_others(folder / file):
                save_file(on_cpu, folder / file, metadata={"format": "pt"})
    if writes:
        write_config(folder, model.spec, rope, seq_len)


def _shapes(model: Decoder) -> dict[str, list[int]]:
    """As files have them."""
    return {name: cut_shape(name, parameter.shape, model.spec.vocab) for name, parameter in model.named_parameters()}

"""Seed and names -> initial weights.

Every parameter is drawn by a generator of its own, keyed by the seed and the parameter's name: the same weights
whatever the device, the layout or the order in which they are made, and without holding two at once. A rank draws
all of a parameter and keeps its part.
"""

import torch
from torch import Tensor

from trivium.engine.parameters import init_std
from trivium.engine.torch.model import Decoder
from trivium.engine.torch.parallel import local_part
from trivium.model.spec import ModelSpec
from trivium.seeds import derive_key


@torch.no_grad()
def init_weights(model: Decoder, seed: int) -> None:
    """Fill what this rank holds of every parameter."""
    for name, parameter in model.named_parameters():
        local, where = local_part(parameter)
        local.copy_(init_weight(name, parameter.shape, model.spec, seed)[where])


def init_weight(name: str, shape: torch.Size, spec: ModelSpec, seed: int) -> Tensor:
    """Norms are ones; matrices normal, narrower where 2 * layers of them add up in the residual stream."""
    if len(shape) == 1:
        return torch.ones(shape)
    rows = min(shape[0], spec.vocab) if "embedding" in name else shape[0]
    weight = torch.zeros(shape)
    generator = torch.Generator().manual_seed(derive_key(seed, "init", name))
    weight[:rows].normal_(std=init_std(name, spec), generator=generator)
    return weight

"""A stage's rotary positions -> the tables of torchtitan's layers, in place, so that no pass is compiled again."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torchtitan.models.common.rope import ComplexRoPE, RoPE

from trivium.model.rotary import rotary_tables
from trivium.model.spec import RopeSpec


def set_rope(parts: Iterable[nn.Module], rope: RopeSpec) -> None:
    """Give every layer the angles of a stage; yarn's attention factor is in them, as in our own engine."""
    made: dict[tuple[type, int, int], Tensor] = {}
    for module in (each for part in parts for each in part.modules() if isinstance(each, RoPE)):
        own = module.cache.to_local() if isinstance(module.cache, DTensor) else module.cache
        key = type(module), module.config.dim, own.shape[0]
        if key not in made:
            made[key] = table(module, rope, own.shape[0])
        own.copy_(made[key])


def table(module: RoPE, rope: RopeSpec, positions: int) -> Tensor:
    """Cosines and sines in the form that a kind of layer has them: complex, or side by side."""
    cos, sin = map(torch.from_numpy, rotary_tables(rope, module.config.dim, positions))
    if isinstance(module, ComplexRoPE):
        return torch.complex(cos, sin)
    return torch.cat([cos, cos, sin, sin], dim=-1)

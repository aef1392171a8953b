"""A parameter's name -> its group, whether weight decay applies to it, and the spread of its first values."""

import math
from dataclasses import dataclass

from trivium.engine.base import NoDecay
from trivium.model.spec import ModelSpec

BACK_INTO_THE_STREAM = ("attention.output.weight", "feed_forward.down.weight")


@dataclass(frozen=True, slots=True)
class ParameterGroup:
    """Parameters with one learning rate, and whether weight decay applies to them."""

    name: str
    decays: bool


def parameter_group(name: str, no_decay: tuple[NoDecay, ...]) -> ParameterGroup:
    *_, owner, kind = name.split(".")
    if owner == "embedding":
        return ParameterGroup("embedding", "embeddings" not in no_decay)
    if owner == "unembedding":
        return ParameterGroup("unembedding", True)
    if kind == "bias":
        return ParameterGroup("rest", "biases" not in no_decay)
    if owner.endswith("norm"):
        return ParameterGroup("rest", "norms" not in no_decay)
    return ParameterGroup("matrix", True)


def init_std(name: str, spec: ModelSpec) -> float:
    """Standard deviation of a matrix; smaller where 2 * layers of them add up in the residual stream."""
    return spec.init_std / math.sqrt(2 * spec.layers) if name.endswith(BACK_INTO_THE_STREAM) else spec.init_std

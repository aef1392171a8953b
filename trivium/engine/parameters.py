"""A parameter's name -> its group, whether weight decay applies to it, and how wide it is drawn; no framework."""

import math
from dataclasses import dataclass

from trivium.engine.base import NoDecay
from trivium.model.spec import ModelSpec

BACK_INTO_THE_STREAM = ("attention.output.weight", "feed_forward.down.weight")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a parameter belongs: its group's learning rate, and whether weight decay applies to it."""

    group: str
    decays: bool


def place_of(name: str, no_decay: tuple[NoDecay, ...]) -> Place:
    """A parameter's place, by its name."""
    *_, owner, kind = name.split(".")
    if owner == "embedding":
        return Place("embedding", "embeddings" not in no_decay)
    if owner == "unembedding":
        return Place("unembedding", True)
    if kind == "bias":
        return Place("rest", "biases" not in no_decay)
    if owner.endswith("norm"):
        return Place("rest", "norms" not in no_decay)
    return Place("matrix", True)


def initial_std(name: str, spec: ModelSpec) -> float:
    """Of a matrix; narrower where 2 * layers of them add up in the residual stream."""
    return spec.init_std / math.sqrt(2 * spec.layers) if name.endswith(BACK_INTO_THE_STREAM) else spec.init_std

"""A parameter's name -> its group, whether weight decay applies to it, and the spread of its first values."""

import math
from dataclasses import dataclass

from trivium.engine.base import NoDecay
from trivium.model.spec import ModelSpec

UNEMBEDDINGS = ("unembedding", "lm_head")  # the decoder's, and that of a model of the user's own
BACK_INTO_THE_STREAM = ("attention.output.weight", "feed_forward.down.weight")


@dataclass(frozen=True, slots=True)
class ParameterGroup:
    """Parameters with one learning rate, and whether weight decay applies to them."""

    name: str
    decays: bool


def parameter_group(name: str, no_decay: tuple[NoDecay, ...], dimensions: int = 2) -> ParameterGroup:
    """By the name of the module that owns a parameter; only what has two dimensions counts as a matrix."""
    owner, kind = _owner(name), name.rpartition(".")[2]
    if owner == "embedding":
        return ParameterGroup("embedding", "embeddings" not in no_decay)
    if owner in UNEMBEDDINGS:
        return ParameterGroup("unembedding", True)
    if kind == "bias":
        return ParameterGroup("rest", "biases" not in no_decay)
    if owner.endswith("norm") or owner == "activation" or dimensions < 2:
        return ParameterGroup("rest", "norms" not in no_decay)
    return ParameterGroup("matrix" if dimensions == 2 else "rest", True)


def init_std(name: str, spec: ModelSpec) -> float:
    """Standard deviation of a matrix; smaller where 2 * layers of them add up in the residual stream."""
    return spec.init_std / math.sqrt(2 * spec.layers) if name.endswith(BACK_INTO_THE_STREAM) else spec.init_std


def drawn_rows(name: str, rows: int, spec: ModelSpec) -> int:
    """How many rows of a matrix have first values; those that only pad the vocabulary are zeros."""
    return min(rows, spec.vocab) if _owner(name) in ("embedding", *UNEMBEDDINGS) else rows


def _owner(name: str) -> str:
    """`layers.0.attention.query.weight` -> `query`; a parameter that no module inside the model has is its own."""
    return (name.rpartition(".")[0] or name).rpartition(".")[2]

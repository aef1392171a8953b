"""Names of a decoder's parts, as a config writes them -> which parameters are meant; no framework.

    embedding, unembedding, norm           the first matrix, the last one, and the norm before it
    layers.3, layers.0-11                  whole layers, counted from 0, both ends included
    attention, feed_forward                one sublayer of every layer, with its norm
    layers.0-11.attention                  the same of some layers

A part is one of `embedding`, `unembedding`, `norm`, and each layer's two sublayers: `layers.3.attention`.
"""

import re
from collections.abc import Iterable, Sequence

from trivium.model.spec import MOST_LAYERS, ModelSpec

OUTER = ("embedding", "unembedding", "norm")
SUBLAYERS = ("attention", "feed_forward")
PART_NAMES = (*OUTER, *SUBLAYERS, "layers.3", "layers.0-11", "layers.0-11.attention")  # as messages show them
_LAYERS = re.compile(r"layers\.(\d{1,5})(?:-(\d{1,5}))?(?:\.(attention|feed_forward))?")


def name_problem(name: str) -> str | None:
    """Why a name is none of a part, whatever the model; None where it is."""
    if name in (*OUTER, *SUBLAYERS):
        return None
    found = _LAYERS.fullmatch(name)
    if found is None:
        return f"is not a part of the model. Write one of {', '.join(PART_NAMES)}."
    first, last = int(found[1]), int(found[2] or found[1])
    if last < first:
        return f"ends before it begins. Write layers.{last}-{first}."
    return None if last < MOST_LAYERS else f"goes beyond {MOST_LAYERS:,} layers. Lower it."


def last_layer(name: str) -> int | None:
    """The last layer that a name without problems speaks of by its number."""
    found = _LAYERS.fullmatch(name)
    return None if found is None else int(found[2] or found[1])


def parts_of(names: Iterable[str], spec: ModelSpec) -> frozenset[str]:
    """The parts that names without problems mean; of tied embeddings one is both."""
    parts: set[str] = set()
    for name in names:
        if name in OUTER:
            parts.add("embedding" if name == "unembedding" and spec.tied_embeddings else name)
            continue
        found = _LAYERS.fullmatch(name)
        first, last = (0, spec.layers - 1) if found is None else (int(found[1]), int(found[2] or found[1]))
        sublayers = [name] if found is None else SUBLAYERS if found[3] is None else [found[3]]
        parts |= {f"layers.{layer}.{sublayer}" for layer in range(first, last + 1) for sublayer in sublayers}
    return frozenset(parts)


def all_parts(spec: ModelSpec) -> frozenset[str]:
    """Every part of a model."""
    return parts_of((*OUTER, *SUBLAYERS), spec)


def part_of(parameter: str) -> str:
    """The part that a parameter of the decoder belongs to: `layers.3.attention_norm.weight` -> `layers.3.attention`."""
    owner, _, rest = parameter.partition(".")
    if owner != "layers":
        return owner
    layer, _, inner = rest.partition(".")
    return f"layers.{layer}.{next(each for each in SUBLAYERS if inner.startswith(each))}"


def shortest_names(parts: frozenset[str], spec: ModelSpec) -> tuple[str, ...]:
    """The fewest names that mean these parts, in one order, however they were written."""
    names = [name for name in OUTER if name in parts]
    by_layer = [tuple(each for each in SUBLAYERS if f"layers.{layer}.{each}" in parts) for layer in range(spec.layers)]
    for sublayers in (SUBLAYERS, *((each,) for each in SUBLAYERS)):
        layers = [layer for layer, frozen in enumerate(by_layer) if frozen == sublayers]
        if len(layers) == spec.layers:
            names += sublayers
            continue
        ending = "" if sublayers == SUBLAYERS else f".{sublayers[0]}"
        names += [f"layers.{span}{ending}" for span in _spans(layers)]
    return tuple(names)


def _spans(numbers: Sequence[int]) -> list[str]:
    """[0, 1, 2, 5] -> ["0-2", "5"]."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and spans[-1][1] == number - 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return [f"{first}-{last}" if last > first else f"{first}" for first, last in spans]

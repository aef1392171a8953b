"""Logits and draws -> next tokens.

A draw belongs to a row and a place in it, and picks from the kept tokens in the order of the vocabulary: what a row
draws does not depend on the rows beside it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trivium.rows.order import uniform
from trivium.seeds import derive_key

FIRST_LOOKED_AT = 1024  # most nuclei are smaller; for others the whole vocabulary is sorted


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a next token is chosen."""

    temperature: float = 1.0  # 0: always the likeliest
    top_k: int | None = None  # only the k likeliest
    top_p: float | None = None  # only the fewest that together are this likely, after top_k
    seed: int = 0


PLAIN = Sampling()
GREEDY = Sampling(temperature=0.0)


def row_key(seed: int, prompt: int, sample: int) -> int:
    """What the draws of a row are keyed by: the prompt's number, and the number of the sample from it."""
    return derive_key(seed, "generate", prompt, sample)


def draws_of(keys: Sequence[int], places: Sequence[int]) -> NDArray[np.float64]:
    """For each row, by its key and its place, a number of [0, 1)."""
    drawn: NDArray[np.uint64] = uniform(np.array(keys, np.uint64), np.array(places, np.int64))
    return (drawn >> np.uint64(11)).astype(np.float64) / 2**53


def choose(logits: NDArray[np.float32], draws: NDArray[np.float64], how: Sampling) -> NDArray[np.int64]:
    """A token for each row of logits (rows, vocab)."""
    if how.temperature == 0:
        likeliest: NDArray[np.int64] = np.argmax(logits, axis=1)
        return likeliest
    return np.array([_choose(row, draw, how) for row, draw in zip(logits, draws.tolist(), strict=True)], np.int64)


def _choose(logits: NDArray[np.float32], draw: float, how: Sampling) -> int:
    vocab = len(logits)
    kept, weights = _likeliest(logits, min(how.top_k or vocab, vocab), how.temperature)
    if how.top_p is not None and how.top_p < 1:
        kept, weights = _nucleus(kept, weights, how.top_p)
    sums = np.cumsum(weights, dtype=np.float64)
    place = int(np.searchsorted(sums, draw * sums[-1], side="right"))
    place = min(place, len(weights) - 1)
    return place if kept is None else int(kept[place])


def _likeliest(
    logits: NDArray[np.float32], count: int, temperature: float
) -> tuple[NDArray[np.int64] | None, NDArray[np.float32]]:
    """The likeliest tokens in the order of the vocabulary (None: all of them), and their weights, unnormalised."""
    kept = None
    if count < len(logits):
        kept = np.flatnonzero(logits >= np.partition(logits, -count)[-count])
        logits = logits[kept]
    weights: NDArray[np.float32] = np.exp((logits - logits.max()) / np.float32(temperature))
    return kept, weights


def _nucleus(
    kept: NDArray[np.int64] | None, weights: NDArray[np.float32], top_p: float
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """The fewest tokens that have this share of all weight, the last of them included."""
    wanted = top_p * weights.sum(dtype=np.float64)
    places = np.arange(len(weights))
    if len(weights) > FIRST_LOOKED_AT:
        likeliest = np.flatnonzero(weights >= np.partition(weights, -FIRST_LOOKED_AT)[-FIRST_LOOKED_AT])
        if weights[likeliest].sum(dtype=np.float64) >= wanted:
            places = likeliest
    falling = places[np.argsort(-weights[places], kind="stable")]
    enough = int(np.searchsorted(np.cumsum(weights[falling], dtype=np.float64), wanted)) + 1
    chosen = np.sort(falling[:enough])
    return chosen if kept is None else kept[chosen], weights[chosen]

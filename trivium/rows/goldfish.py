"""Goldfish masks: one of k tokens is not a target, by a hash of the h tokens before it in its document.

The tokens alone decide, and no seed: a passage has the same gaps in every epoch, in any packing, over the edge of a
row, and wherever else it occurs, so that its missing tokens never count (Hans et al., 2024, "Be like a Goldfish,
Don't Memorize!"). The first h tokens of a document have fewer before them and are all kept.

The hash rolls: for tokens t, H(i) is t[i] + t[i - 1] * B + ... + t[i - h + 1] * B^(h - 1), modulo 2^64, and is mixed
before it is compared. Of a piece that begins within its document the tokens before it are read too, from the same file.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trivium.rows.batch import IGNORED
from trivium.rows.kernels import compiled
from trivium.rows.order import mixed

Int32s = NDArray[np.int32]
BASE = np.uint64(0xD1342543DE82EF95)
ONE = np.uint64(1)


@dataclass(frozen=True, slots=True)
class Goldfish:
    """Which targets are dropped."""

    k: int = 0  # one of this many; 0: none
    h: int = 0  # tokens that decide

    @property
    def rule(self) -> tuple[np.uint64, int, np.uint64]:
        """The hash below which a token is dropped, the tokens that are hashed, and the factor of the oldest of them."""
        return np.uint64(2**64 // self.k if self.k else 0), self.h, np.uint64(pow(int(BASE), max(0, self.h - 1), 2**64))


NONE = Goldfish()


@compiled
def drop(before: Int32s, tokens: Int32s, targets: Int32s, limit: np.uint64, h: int, oldest: np.uint64) -> None:
    """Ignore targets of a piece's tokens, by a rule; `before` are the tokens of its document before it, at most h - 1.

    Target i is decided by the h tokens up to token i.
    """
    rolled = np.uint64(0)
    for token in before:
        rolled = rolled * BASE + np.uint64(token) + ONE
    first = h - 1 - before.size  # that has enough tokens before it
    for index in range(min(first, targets.size)):
        rolled = rolled * BASE + np.uint64(tokens[index]) + ONE
    for index in range(first, targets.size):
        rolled = rolled * BASE + np.uint64(tokens[index]) + ONE
        targets[index] = IGNORED if mixed(rolled) < limit else targets[index]
        leaves = before[index - first] if index < h - 1 else tokens[index - h + 1]
        rolled -= (np.uint64(leaves) + ONE) * oldest

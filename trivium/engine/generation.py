"""Rows that grow, of a model that keeps nothing from token to token: every token is one more pass over whole rows.

For models of the user's own, which are asked for hidden states and nothing else. The price of a token grows with its
row; what is computed is right for any causal model.
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from trivium.rows.batch import IGNORED, PADDING, Batch

Row = NDArray[np.integer]


class WholeRowGeneration:
    """The `Generation` of an engine that gives the logits (rows, vocab) of what follows each of some rows."""

    def __init__(self, prompts: Sequence[Row], next_logits: Callable[[Sequence[Row]], NDArray[np.float32]]) -> None:
        self.rows = [np.asarray(prompt) for prompt in prompts]
        self._next_logits = next_logits
        self._logits = next_logits(self.rows)

    def logits(self) -> NDArray[np.float32]:
        return self._logits.copy()

    def append(self, tokens: NDArray[np.integer]) -> None:
        self.rows = [np.append(row, token) for row, token in zip(self.rows, tokens, strict=True)]
        self._logits = self._next_logits(self.rows)

    def select(self, rows: NDArray[np.integer]) -> None:
        chosen = np.asarray(rows, np.int64)
        self.rows, self._logits = [self.rows[row] for row in chosen], self._logits[chosen]


def padded_rows(rows: Sequence[Row], size: int, slots: int) -> Batch:
    """Rows as a batch of this shape with nothing to learn: a document each, then padding; more rows are padding."""
    shape = (size, slots)
    tokens, positions = np.zeros(shape, np.int32), np.zeros(shape, np.int32)
    segments = np.full(shape, PADDING, np.int32)
    for number, row in enumerate(rows):
        here = slice(0, len(row))
        tokens[number, here], positions[number, here], segments[number, here] = row, np.arange(len(row)), 0
    return Batch(tokens, np.full(shape, IGNORED, np.int32), segments, positions, np.zeros(size, np.int32), ("",))

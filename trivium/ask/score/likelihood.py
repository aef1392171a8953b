"""Prompts with choices -> the likeliest choice of each; on many ranks together.

Where every choice is one token, one pass over the prompt is enough: the choices' logits are compared. Longer ones are
each read after the prompt, and the one with the fewest nats in all is taken.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trivium.engine.base import Engine
from trivium.engine.ranks import Ranks
from trivium.rows.batch import IGNORED, PADDING, Batch

BATCH_ROWS = 16
ROUNDED = 64  # row lengths are a multiple of this, so that a compiled engine sees few shapes

Tokens = NDArray[np.integer]


@dataclass(frozen=True, slots=True)
class Choice:
    """A prompt and what may follow it."""

    prompt: Tokens
    choices: Sequence[Tokens]

    @property
    def longest(self) -> int:
        """Tokens of the longest of its rows."""
        return len(self.prompt) + max(len(each) for each in self.choices)


def likeliest(engine: Engine, asked: Sequence[Choice], ranks: Ranks, batch_rows: int = BATCH_ROWS) -> list[int]:
    """For each the number of the likeliest choice. Rows must be no longer than those of the engine's stage."""
    long = any(len(each) != 1 for one in asked for each in one.choices)
    if not ranks.agree(long)[0]:
        return _by_next_token(engine, asked, ranks, batch_rows)
    nats = iter(summed_nats(engine, [(one.prompt, each) for one in asked for each in one.choices], ranks, batch_rows))
    return [int(np.argmin([next(nats) for _ in one.choices])) for one in asked]


def _by_next_token(engine: Engine, asked: Sequence[Choice], ranks: Ranks, batch_rows: int) -> list[int]:
    chosen = [0] * len(asked)
    places = sorted(range(len(asked)), key=lambda place: len(asked[place].prompt))
    while ranks.agree(bool(places))[0]:
        now, places = places[:batch_rows], places[batch_rows:]
        logits = engine.generation([asked[place].prompt for place in now], 1).logits()
        for place, row in zip(now, logits, strict=True):
            chosen[place] = int(np.argmax(row[np.concatenate(asked[place].choices)]))
    return chosen


def summed_nats(engine: Engine, rows: Sequence[tuple[Tokens, Tokens]], ranks: Ranks, batch_rows: int) -> list[float]:
    """Nats of each choice after its prompt; all ranks make the same number of passes, of the same shape."""
    own = max((len(prompt) + len(choice) - 1 for prompt, choice in rows), default=1)
    facts = ranks.gather([len(rows), own])
    length = -(-max(longest for _, longest in facts) // ROUNDED) * ROUNDED
    found: list[float] = []
    for first in range(0, max(count for count, _ in facts), batch_rows):
        part = rows[first : first + batch_rows]
        nats = engine.nats(_batch(part, batch_rows, length)).sum(axis=1, dtype=np.float64)
        found += nats[: len(part)].tolist()
    return found


def _batch(rows: Sequence[tuple[Tokens, Tokens]], count: int, length: int) -> Batch:
    """Rows whose choices count in the loss; rows that fill up the batch have one token, which does not."""
    tokens, positions = np.zeros((2, count, length), np.int32)
    targets = np.full((count, length), IGNORED, np.int32)
    segments = np.full((count, length), PADDING, np.int32)
    segments[:, 0] = 0
    for row, (prompt, choice) in enumerate(rows):
        whole = np.concatenate([prompt, choice])
        end = len(whole) - 1
        tokens[row, :end], positions[row, :end], segments[row, :end] = whole[:-1], np.arange(end), 0
        targets[row, len(prompt) - 1 : end] = choice
    return Batch(tokens, targets, segments, positions, np.zeros(count, np.int32), ("questions",))

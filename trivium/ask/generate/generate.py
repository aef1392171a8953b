"""Prompts -> what a model writes after them, in batches of rows; on many ranks together.

    rows = generate(engine, prompts, Writing(max_tokens=64, stop=frozenset({eos})))
    rows[2][0].tokens           the first sample from the third prompt

A prompt is read once whatever the number of its samples. A row that has ended leaves its batch, which continues with
the others. On many ranks every pass is one of all of them: ranks may bring other numbers of prompts and other
lengths, and agree before each pass whether any of them has something left to write.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from trivium.ask.generate.row import GeneratedRow, Writing
from trivium.ask.generate.sampling import choose, draws_of, row_key
from trivium.engine.base import Engine, Generation
from trivium.engine.ranks import Ranks

BATCH_ROWS = 32


def generate(
    engine: Engine,
    prompts: Sequence[NDArray[np.integer]],
    writing: Writing,
    numbers: Sequence[int] | None = None,
    ranks: Ranks | None = None,
    batch_rows: int = BATCH_ROWS,
) -> list[list[GeneratedRow]]:
    """For each prompt its samples. `numbers` key the draws of each prompt; by default its place does."""
    ranks = ranks or Ranks()
    keys = range(len(prompts)) if numbers is None else numbers
    rows = [
        [GeneratedRow(row_key(writing.sampling.seed, number, sample), writing) for sample in range(writing.samples)]
        for number in keys
    ]
    batches = list(_batches(prompts, max(1, batch_rows // writing.samples)))
    while ranks.agree(bool(batches))[0]:
        places = batches.pop(0) if batches else []
        generation = engine.generation([prompts[place] for place in places], writing.max_tokens)
        if writing.samples > 1:
            generation.select(np.repeat(np.arange(len(places)), writing.samples))
        write(generation, [row for place in places for row in rows[place]], ranks)
    return rows


def write(generation: Generation, rows: Sequence[GeneratedRow], ranks: Ranks) -> None:
    """Extend a generation's rows until all have ended, on all ranks."""
    while True:
        tokens = next_tokens(generation, rows)
        left = [place for place, row in enumerate(rows) if not row.ended]
        if not ranks.agree(bool(left))[0]:
            return
        if len(left) < len(rows):
            generation.select(np.array(left, np.int64))
            rows = [rows[place] for place in left]
        generation.append(tokens[left])


def next_tokens(generation: Generation, rows: Sequence[GeneratedRow]) -> NDArray[np.int64]:
    """Add one token to each row; the generation does not have it yet."""
    if not rows:
        return np.zeros(0, np.int64)
    sampling, vocab = rows[0].writing.sampling, rows[0].writing.vocab
    draws = draws_of([row.key for row in rows], [len(row.tokens) for row in rows]) if sampling.temperature else None
    chosen = choose(generation.logits()[:, :vocab], np.zeros(len(rows)) if draws is None else draws, sampling)
    return np.array([row.take(token) for row, token in zip(rows, chosen.tolist(), strict=True)], np.int64)


def _batches(prompts: Sequence[NDArray[np.integer]], size: int) -> Iterator[list[int]]:
    """Places of prompts, those of like lengths together."""
    by_length = sorted(range(len(prompts)), key=lambda place: len(prompts[place]))
    for start in range(0, len(by_length), size):
        yield by_length[start : start + size]

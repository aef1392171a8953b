"""Batches that can be checked by eye: rows as lists of document lengths, padded at the end."""

from collections.abc import Mapping

import numpy as np

from trivium.engine.base import StepSettings
from trivium.model.spec import ModelSpec
from trivium.plan.rates import GROUPS
from trivium.rows.batch import IGNORED, PADDING, Batch

SEQ_LEN = 16
VOCAB = 50
TINY = ModelSpec(
    layers=2, width=32, heads=4, kv_heads=2, head_dim=8, ffn=64, vocab=VOCAB, max_seq_len=SEQ_LEN, init_std=0.2
)
ROWS = ((5, 7, 4), (16,), (3, 6), (10, 2, 1))  # documents in each of four rows; two rows end in padding


def make_batch(
    rows: tuple[tuple[int, ...], ...] = ROWS, seed: int = 0, seq_len: int = SEQ_LEN, vocab: int = VOCAB
) -> Batch:
    """Random documents; every token's target is the next of its document, the last one's is ignored."""
    shape = (len(rows), seq_len)
    tokens, positions = np.zeros(shape, np.int32), np.zeros(shape, np.int32)
    targets, segments = np.full(shape, IGNORED, np.int32), np.full(shape, PADDING, np.int32)
    random = np.random.default_rng(seed)
    for row, lengths in enumerate(rows):
        start = 0
        for number, length in enumerate(lengths):
            document = random.integers(0, vocab, length, dtype=np.int32)
            here = slice(start, start + length)
            tokens[row, here], positions[row, here], segments[row, here] = document, np.arange(length), number
            targets[row, start : start + length - 1] = document[1:]
            start += length
    source = np.arange(len(rows), dtype=np.int32) % 2
    return Batch(tokens, targets, segments, positions, source, ("web", "code", "unread"))


def settings_at(
    step: int = 0, lr: float = 1e-2, weight_decay: float = 0.1, by_group: Mapping[str, float] | None = None
) -> StepSettings:
    """A step with one learning rate, but for the groups that have their own."""
    return StepSettings(
        step=step,
        stage=0,
        seq_len=SEQ_LEN,
        batch_size=len(ROWS),
        tokens_before=0,
        lr_multiplier=1.0,
        lr=dict.fromkeys(GROUPS, lr) | dict(by_group or {}),
        momentum=0.9,
        weight_decay=weight_decay,
        alpha=2.0,
        beta3=0.99,
    )

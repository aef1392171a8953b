"""A batch and the losses of its targets -> figures by source and by position; no framework."""

import numpy as np
from numpy.typing import NDArray

from trivium.engine.base import POSITIONS, SourceFigures
from trivium.rows.batch import IGNORED, Batch


def counts_by_source(batch: Batch, tokens: NDArray[np.int64]) -> NDArray[np.float64]:
    """Rows and loss tokens by source, (2, sources); `tokens` are the rows' loss tokens."""
    weights = (None, tokens)
    found = [np.bincount(batch.source, each, minlength=len(batch.sources)) for each in weights]
    return np.array(found, np.float64)


def figures_by_position(batch: Batch, nats: NDArray[np.float32]) -> NDArray[np.float64]:
    """Losses of all targets (rows, seq_len) -> sums by the position of the token that they are predicted from."""
    loss_mask = batch.targets != IGNORED
    ranges = np.searchsorted(POSITIONS, batch.positions[loss_mask], side="right") - 1
    sums = [np.bincount(ranges, weights, len(POSITIONS)) for weights in (nats[loss_mask], None)]
    return np.stack(sums, axis=1).astype(np.float64)


def figures_by_source(
    batch: Batch, nats: NDArray[np.float32], token_bytes: NDArray[np.integer] | None = None
) -> dict[str, SourceFigures]:
    """Losses of all targets (rows, seq_len) -> figures of every source that has rows in the batch."""
    loss_mask = batch.targets != IGNORED
    nats_by_row, tokens_by_row = nats.sum(axis=1, dtype=np.float64), loss_mask.sum(axis=1)
    bytes_by_row = text_nats_by_row = None
    if token_bytes is not None:
        sizes = np.where(loss_mask, token_bytes[np.where(loss_mask, batch.targets, 0)], 0)
        bytes_by_row = sizes.sum(axis=1)
        text_nats_by_row = np.where(sizes > 0, nats, 0).sum(axis=1, dtype=np.float64)
    figures = {}
    for number in np.unique(batch.source):
        rows = batch.source == number
        figures[batch.sources[number]] = SourceFigures(
            nats=float(nats_by_row[rows].sum()),
            tokens=int(tokens_by_row[rows].sum()),
            bytes=None if bytes_by_row is None else int(bytes_by_row[rows].sum()),
            text_nats=None if text_nats_by_row is None else float(text_nats_by_row[rows].sum()),
        )
    return figures

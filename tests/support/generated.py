"""What a model says of next tokens, found without a cache: whole rows, one for each token that might come next."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from trivium.engine.base import Engine
from trivium.rows.batch import Batch


def log_probabilities(engine: Engine, row: Sequence[int], vocab: int) -> NDArray[np.float64]:
    """Of every token after every token of a row: (len(row), vocab), by a forward pass over whole rows."""
    shape = (vocab, len(row))
    batch = Batch(
        tokens=np.broadcast_to(np.array(row, np.int32), shape).copy(),
        targets=np.broadcast_to(np.arange(vocab, dtype=np.int32)[:, None], shape).copy(),
        segments=np.zeros(shape, np.int32),
        positions=np.broadcast_to(np.arange(len(row), dtype=np.int32), shape).copy(),
        source=np.zeros(vocab, np.int32),
        sources=("asked",),
    )
    return -engine.nats(batch).T.astype(np.float64)


def normalised(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    """Log-probabilities of logits, by row."""
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=1, keepdims=True)
    wide -= np.log(np.exp(wide).sum(axis=1, keepdims=True))
    return wide

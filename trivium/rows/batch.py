"""One step's rows as arrays: what the loader makes and an engine learns from."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

IGNORED = -100  # a target that does not count in the loss: across documents, in padding, outside loss spans
PADDING = -1  # the segment of a slot that holds no token


@dataclass(slots=True, eq=False)
class Batch:
    """Rows of one length: B rows of T slots, each row from one source."""

    tokens: NDArray[np.int32]  # (B, T); 0 in padding
    targets: NDArray[np.int32]  # (B, T); the document's next token, or IGNORED
    segments: NDArray[np.int32]  # (B, T); the document's number in the row, or PADDING
    positions: NDArray[np.int32]  # (B, T); restart at 0 in each document
    source: NDArray[np.int32]  # (B,); index into `sources`
    sources: tuple[str, ...]  # the names that `source` counts

    @property
    def num_rows(self) -> int:
        """B, the rows of this batch."""
        return len(self.source)

    @property
    def seq_len(self) -> int:
        """Slots in a row."""
        return int(self.tokens.shape[1])

    def loss_tokens(self) -> int:
        """Targets that count in the loss."""
        return int(np.count_nonzero(self.targets != IGNORED))

    def loss_tokens_by_row(self) -> NDArray[np.int64]:
        """Of every row, the targets that count in the loss."""
        counted: NDArray[np.int64] = np.count_nonzero(self.targets != IGNORED, axis=1)
        return counted

    def rows(self, start: int, stop: int) -> "Batch":
        """Some of the rows, sharing this batch's arrays: a rank's shard, or a micro-batch."""
        return Batch(
            self.tokens[start:stop],
            self.targets[start:stop],
            self.segments[start:stop],
            self.positions[start:stop],
            self.source[start:stop],
            self.sources,
        )

    def joined(self) -> "Batch":
        """The same rows, whose documents are one, which counts positions through the row."""
        positions = np.tile(np.arange(self.seq_len, dtype=np.int32), (self.num_rows, 1))
        segments = np.where(self.segments == PADDING, PADDING, 0).astype(np.int32)
        return Batch(self.tokens, self.targets, segments, positions, self.source, self.sources)

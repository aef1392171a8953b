"""Weights of sources in the loss: what a token's terms are multiplied by, and what their sum is divided by.

The objective of a batch is the sum over its loss tokens of weight * term, divided by the sum of their weights on all
ranks: micro-batches and ranks change nothing, and weights of 2 and 2 do what 1 and 1 do.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from trivium.rows.batch import Batch


@dataclass(frozen=True, slots=True)
class LossWeights:
    """A weight for each source that is named, and 1 for every other."""

    by_source: Mapping[str, float] = field(default_factory=dict, hash=False)  # settings can be hashed, a dict cannot

    def __bool__(self) -> bool:
        """Whether any source is named."""
        return bool(self.by_source)

    def of(self, source: str) -> float:
        """The weight of one source."""
        return self.by_source.get(source, 1.0)

    def of_sources(self, sources: tuple[str, ...]) -> NDArray[np.float32] | None:
        """The weights of these sources, in their order; None where none is named."""
        return np.array([self.of(name) for name in sources], np.float32) if self else None

    def of_rows(self, batch: Batch) -> NDArray[np.float32] | None:
        """The weight of each row of a batch; None where none is named."""
        weights = self.of_sources(batch.sources)
        return None if weights is None else weights[batch.source]

    def total(self, figures: Mapping[str, float]) -> float:
        """The weighted sum of figures by source: of loss tokens, what an objective is divided by."""
        return sum(self.of(name) * figure for name, figure in figures.items())

    def mean(self, nats: Mapping[str, float], tokens: Mapping[str, float]) -> float:
        """The weighted mean of nats over tokens, each by source; 0 where no token has a weight."""
        total = self.total(tokens)
        return self.total(nats) / total if total else 0.0


EQUAL = LossWeights()

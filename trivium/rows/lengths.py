"""Documents by their length: the bands of a source, of which each of its views has some."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trivium.rows.kernels import compiled

Int64s = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class LengthRange:
    """The documents of a source whose length is in a range, which is one or several of its bands.

    Band b has the documents of `bounds[b - 1]` up to, but not including, `bounds[b]` tokens. The views of a source
    give the bounds, so that each view is a run of whole bands, and the source itself is all of them.
    """

    bounds: tuple[int, ...] = ()  # rising
    first: int = 0  # the first band
    end: int = 1  # behind the last one

    @classmethod
    def between(cls, bounds: tuple[int, ...], shortest: int = 0, limit: int | None = None) -> "LengthRange":
        """From a length up to, but not including, another; both are among the bounds."""
        first = bounds.index(shortest) + 1 if shortest else 0
        return cls(bounds, first, len(bounds) + 1 if limit is None else bounds.index(limit) + 1)

    @property
    def bands(self) -> range:
        """The numbers of its bands."""
        return range(self.first, self.end)

    @property
    def mask(self) -> int:
        """Its bands as bits."""
        return (1 << self.end) - (1 << self.first)

    @property
    def is_whole(self) -> bool:
        """Whether it has documents of all lengths."""
        return len(self.bands) == len(self.bounds) + 1

    @property
    def limits(self) -> tuple[int, int]:
        """The shortest length, and the first one that is too long."""
        low = self.bounds[self.first - 1] if self.first else 0
        return low, self.bounds[self.end - 1] if self.end <= len(self.bounds) else 2**62


ALL_LENGTHS = LengthRange()
MAX_BOUNDS = 61  # the bands of a mask fit a word


@compiled
def band_of(bounds: Int64s, length: int) -> int:
    """The band of a document: how many bounds are not above its length."""
    band = 0
    while band < bounds.size and bounds[band] <= length:
        band += 1
    return band

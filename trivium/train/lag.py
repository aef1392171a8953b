"""Seconds that each rank takes until it meets the others -> the one that they wait for.

Ranks that share a model pass through it together: the time of a step is the same for all of them. What differs is
how long each takes from one meeting to the next by itself: its batch, its update, its disk, its machine's other work.
"""

import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from trivium.engine.ranks import Ranks

STEPS = 10  # between two looks at all ranks
LAG = 1.2  # of the median
LOOKS = 3  # in which the same rank lags before it is said


@dataclass(slots=True)
class Lag:
    """Goes along with the run."""

    ranks: Ranks
    say: Callable[[str], None]
    _seconds: list[float] = field(default_factory=list)
    _looks: int = 0
    _last: int | None = None

    def took(self, seconds: float) -> dict[str, Any]:
        """One more step; what its event says of the slowest rank, where one lags."""
        self._seconds.append(seconds)
        if self.ranks.size == 1 or len(self._seconds) < STEPS:
            return {}
        means = self.ranks.gather(statistics.fmean(self._seconds))
        self._seconds.clear()
        slowest = max(range(len(means)), key=means.__getitem__)
        median = statistics.median_low(means)
        if means[slowest] < LAG * median:
            self._looks, self._last = 0, None
            return {}
        self._looks = self._looks + 1 if slowest == self._last else 1
        self._last = slowest
        if self._looks == LOOKS:
            times = f"{means[slowest]:.3f} s where half of them take {median:.3f} s or less"
            self.say(f"rank {slowest} is slow: the others wait for it, {times}")
        return {"slowest_rank": slowest, "slowest_seconds": means[slowest], "median_seconds": median}

"""The memory that a rank is predicted to take in every stage, found while the run trains."""

import threading

from trivium.errors import TriviumError
from trivium.forecast.layout import Layout
from trivium.plan.plan import CompletePlan


class PredictedPeaks:
    """Bytes of a rank by stage, from a process and a thread of their own: a few seconds of one core for each stage."""

    def __init__(self, plan: CompletePlan, ranks: int) -> None:
        self._peaks: list[int] = []
        self._thread = threading.Thread(target=self._predict, args=(plan, ranks), name="trivium-predict", daemon=True)
        self._thread.start()

    def of(self, stage: int) -> int | None:
        """Of a stage by its index; None as long as it is not known, or where the layout cannot be measured."""
        return self._peaks[stage] if self._peaks else None

    def wait(self) -> "PredictedPeaks":
        self._thread.join()
        return self

    def _predict(self, plan: CompletePlan, ranks: int) -> None:
        try:
            peaks = Layout.of(plan, plan.config, ranks).peaks(plan.stages)
        except TriviumError:  # what only informs ends no run
            return
        self._peaks = [sum(parts.values()) for parts in peaks]

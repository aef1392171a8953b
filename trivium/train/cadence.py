"""When a checkpoint is due, and what a signal does: finish the step, save, end."""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from trivium.config.schema import Cadence as CadenceConfig
from trivium.engine.ranks import Ranks

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)  # SIGUSR1: what clusters send ahead of the end


class Cadence:
    """Every so many steps or minutes."""

    def __init__(self, every: CadenceConfig | None, ranks: Ranks | None = None) -> None:
        self._every = every
        self._ranks = ranks or Ranks()
        self._last = time.monotonic()

    def due(self, step: int) -> bool:
        """Whether one is due once so many steps are taken."""
        if self._every is None:
            return False
        if self._every.steps is not None:
            return step % self._every.steps == 0
        minutes = self._ranks.share((time.monotonic() - self._last) / 60)  # clocks differ: one of them decides
        if self._every.minutes is None or minutes < self._every.minutes:
            return False
        self._last = time.monotonic()
        return True


@contextmanager
def stops_on_signals(stop: Callable[[str], None]) -> Iterator[None]:
    """Every signal calls `stop` with its name; after the first, Ctrl-C ends the process as it always does."""

    def handle(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, before[signal.SIGINT])
        stop(signal.Signals(number).name)

    try:
        before = {each: signal.signal(each, handle) for each in STOP_SIGNALS}
    except ValueError:  # not in the main thread, as in some notebooks: signals stay as they are
        yield
        return
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)

"""When a checkpoint is due, and what a signal does: finish the step, save, end."""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from trivium.config.schema import Cadence as CadenceConfig

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)  # SIGUSR1: what clusters send ahead of the end


class Cadence:
    """Every so many steps or minutes."""

    def __init__(self, every: CadenceConfig | None) -> None:
        self._every = every
        self._last = time.monotonic()

    def due(self, step: int) -> bool:
        """Whether one is due once so many steps are taken."""
        if self._every is None:
            return False
        if self._every.steps is not None:
            return step % self._every.steps == 0
        minutes = (time.monotonic() - self._last) / 60
        if self._every.minutes is None or minutes < self._every.minutes:
            return False
        self._last = time.monotonic()
        return True


@contextmanager
def stops_on_signals(stop: Callable[[str], None]) -> Iterator[None]:
    """The first signal calls `stop` with its name; a second one of Ctrl-C ends the process as it always does."""

    def handle(number: int, frame: FrameType | None) -> None:
        for each in STOP_SIGNALS:
            signal.signal(each, before[each])
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

"""What a signal does to a run: finish the step, save, end."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)  # SIGUSR1: what clusters send ahead of the end


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

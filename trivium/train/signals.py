"""Signals that stop a run: while it starts they end the process at once, while it trains they end it after a step.

A cluster sends SIGTERM or SIGUSR1 ahead of the end, at any moment. Both answers have the exit code that asks for
another launch. Imports nothing heavy, so that the first handlers are there before a framework is imported.
"""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)  # SIGUSR1: what clusters send ahead of the end
CLUSTER_SIGNALS = (signal.SIGTERM, signal.SIGUSR1)


@contextmanager
def start_up_signals(exit_code: int) -> Iterator[None]:
    """SIGTERM and SIGUSR1 end the process with this code, until `stops_on_signals` takes over: nothing is lost yet."""

    def end(number: int, frame: FrameType | None) -> None:
        name = signal.Signals(number).name
        os.write(2, f"{name}: ended while no step was being taken. Start the run again.\n".encode())
        os._exit(exit_code)

    def watch() -> None:
        while number := os.read(reader, 1):
            if signal.getsignal(number[0]) is end:
                end(number[0], None)

    # Python calls a handler when its main thread returns to Python, and a rank may wait for the others in a library
    # for half an hour. The number of a signal goes into the pipe at once, and a thread reads it.
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    watcher = threading.Thread(target=watch, name="trivium-start-up", daemon=True)
    watcher.start()
    before = {each: signal.signal(each, end) for each in CLUSTER_SIGNALS}
    woken_before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    try:
        yield
    finally:
        signal.set_wakeup_fd(woken_before)
        for each, handler in before.items():
            signal.signal(each, handler)
        os.close(writer)
        watcher.join()
        os.close(reader)


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

"""A run that stops making progress ends, and leaves behind where it stood.

A thread looks at the time of the last beat. A rank that hangs holds up all others at their next exchange, so that
each rank's own watchdog writes its own stacks, and the launcher finds that all have ended.
"""

import faulthandler
import os
import sys
import threading
import time
from pathlib import Path

STALLED = 4  # the exit code
LOOKS = 20  # so many times within the limit


class Watchdog:
    """Ends the process when `beat` has not been called for so long."""

    def __init__(self, limit_seconds: float, stacks: Path) -> None:
        self._limit = limit_seconds
        self._stacks = stacks
        self._last = time.monotonic()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="trivium-watchdog", daemon=True)
        self._thread.start()

    def beat(self) -> None:
        """There is progress."""
        self._last = time.monotonic()

    def close(self) -> None:
        """Watch no longer."""
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(self._limit / LOOKS):
            silent = time.monotonic() - self._last
            if silent > self._limit:
                self._end(silent)

    def _end(self, silent: float) -> None:
        self._stacks.parent.mkdir(parents=True, exist_ok=True)
        with open(self._stacks, "a") as file:
            file.write(f"no progress for {silent:.0f} s; every thread of process {os.getpid()}:\n")
            file.flush()
            faulthandler.dump_traceback(file, all_threads=True)
        sys.stderr.write(f"no progress for {silent:.0f} s (guard.stall_minutes): ended. Stacks: {self._stacks}\n")
        sys.stderr.flush()
        os._exit(STALLED)

"""A run that stops making progress ends, and leaves the stacks and the last exchanges of each rank behind.

A thread looks at the time of the last beat. A rank that hangs holds up all others at their next exchange, so that
each rank's watchdog ends its own process. A process that the system has stopped can write nothing: the first watchdog
that ends its rank has the other ranks of its machine continued, and their stacks written by a signal, beforehand.
"""

import faulthandler
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from trivium.screen import echo

STALLED = 4  # the exit code
LOOKS = 20  # times within the limit
ASKS = signal.SIGUSR2  # of another rank: write your stacks
PATIENCE = 10.0  # seconds for the stacks of others


@dataclass(frozen=True, slots=True)
class Process:
    """A process, and where its number means something."""

    machine: str
    number: int


def this_process() -> Process:
    """This one; machines are told apart by their boot, and containers by what numbers their processes have."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return Process(f"{boot} {os.readlink('/proc/self/ns/pid')}", os.getpid())
    except OSError:
        return Process(socket.gethostname(), os.getpid())


class Watchdog:
    """Ends the process when `beat` has not been called within the limit; `processes` are those of all ranks."""

    def __init__(
        self,
        limit_seconds: float,
        folder: Path,
        rank: int,
        processes: Sequence[Process],
        recorded: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._limit = limit_seconds
        self._recorded = recorded
        self._exchanges = folder / f"rank-{rank}-exchanges.json"
        self._rank = rank
        self._stacks = [folder / f"rank-{each}.txt" for each in range(len(processes))]
        own = processes[rank]
        self._neighbours = {
            other: process.number
            for other, process in enumerate(processes)
            if process.machine == own.machine and other != rank
        }
        if self._neighbours:
            folder.mkdir(parents=True, exist_ok=True)
            self._asked = open(self._stacks[rank], "a")  # noqa: SIM115
            faulthandler.register(ASKS, self._asked, all_threads=True)
        self._last = time.monotonic()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="trivium-watchdog", daemon=True)
        self._thread.start()

    def beat(self) -> None:
        self._last = time.monotonic()

    def close(self) -> None:
        """Watch no longer; leave no file without stacks."""
        self._over.set()
        self._thread.join()
        if not self._neighbours:
            return
        faulthandler.unregister(ASKS)
        self._asked.close()
        own = self._stacks[self._rank]
        with suppress(OSError):
            if own.stat().st_size == 0:
                own.unlink()
                own.parent.rmdir()

    def _watch(self) -> None:
        while not self._over.wait(self._limit / LOOKS):
            silent = time.monotonic() - self._last
            if silent > self._limit:
                self._end(silent)

    def _end(self, silent: float) -> None:
        own = self._stacks[self._rank]
        own.parent.mkdir(parents=True, exist_ok=True)
        with open(own, "a") as file:
            file.write(f"no progress for {silent:.0f} s; every thread of process {os.getpid()}:\n")
            file.flush()
            faulthandler.dump_traceback(file, all_threads=True)
        writing = threading.Thread(target=self._write_exchanges, daemon=True)  # the recorder may be locked
        writing.start()
        self._ask_neighbours()
        writing.join(PATIENCE)
        echo(f"no progress for {silent:.0f} s (guard.stall_minutes): ended. Stacks: {own}", err=True)
        os._exit(STALLED)

    def _write_exchanges(self) -> None:
        recorded = self._recorded()
        if recorded is not None:
            self._exchanges.write_text(recorded)

    def _ask_neighbours(self) -> None:
        """Have the other ranks of this machine write their stacks, also one that is stopped."""
        for number in self._neighbours.values():
            with suppress(OSError):  # one that has ended
                os.kill(number, ASKS)
                os.kill(number, signal.SIGCONT)
        until = time.monotonic() + PATIENCE
        waiting = [self._stacks[rank] for rank in self._neighbours]
        while any(path.stat().st_size == 0 for path in waiting if path.exists()) and time.monotonic() < until:
            time.sleep(0.05)

"""One launch of a command, and what happens to it: a signal at a random moment, to one of its processes or to all.

A launch has begun when the run says that it starts; moments are drawn within start-up, or after that. Whoever is left
must end by itself, except ranks that wait for one that died while all started: a launcher ends those.
"""

import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tests.chaos.scenarios import Scenario
from tests.support.events import steps_taken
from tests.support.scripts import ROOT
from trivium.run.folder import RunFolder

LONGEST = 300.0  # seconds in which any launch must have ended by itself
PAUSE = 0.01
STOPPED = 3


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds that an undisturbed launch took to begin, and to come from there to its end."""

    start: float
    work: float


@dataclass(frozen=True, slots=True)
class Blow:
    """A signal, to whom, and when: seconds after the launch, or after it has begun."""

    signal: signal.Signals
    victims: str
    seconds: float
    has_begun: bool

    @classmethod
    def draw(cls, scenario: Scenario, pace: Pace, chance: random.Random) -> "Blow":
        """Three of four are SIGKILL, one of four comes while the command starts; early ones are likelier than late."""
        kinds = [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1] if scenario.stops else [signal.SIGTERM, signal.SIGINT]
        kind = signal.SIGKILL if chance.random() < 0.75 else chance.choice(kinds)
        has_begun = chance.random() < 0.75
        # A launch that is hit early leaves more of the run for those after it.
        seconds = chance.uniform(0, pace.work * chance.random() if has_begun else pace.start)
        return cls(kind, chance.choice(scenario.victims), seconds, has_begun)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a launch ended."""

    codes: list[int]
    was_hit: bool
    fault: str | None = None

    @property
    def is_finished(self) -> bool:
        return not any(self.codes)


class Launch:
    """The processes of one launch of a scenario's command."""

    def __init__(self, scenario: Scenario, folder: Path, more: Sequence[str], log: IO[bytes]) -> None:
        self.scenario = scenario
        self.folder = folder
        self._begun_before = scenario.begun(folder)
        self.since = time.monotonic()
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        environment = os.environ | scenario.environment
        environment |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
        environment["TRIVIUM_CACHE"] = str(folder / "cache")
        ranks = {"WORLD_SIZE": str(scenario.ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        self.processes = [
            subprocess.Popen(
                [sys.executable, "-m", "trivium", *scenario.command, *more],
                cwd=folder,
                env=environment | (ranks | {"RANK": str(rank), "LOCAL_RANK": str(rank)} if scenario.ranks > 1 else {}),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
            for rank in range(scenario.ranks)
        ]

    @property
    def has_begun(self) -> bool:
        """Whether the folder shows that this launch is at work."""
        return self.scenario.begun(self.folder) != self._begun_before

    @property
    def has_ended(self) -> bool:
        return all(process.poll() is not None for process in self.processes)

    def wait_to_begin(self) -> None:
        while not self.has_begun and not self.has_ended:
            time.sleep(PAUSE)

    def wait(self, seconds: float) -> bool:
        """Wait for the end of all processes; false where some are left after this time."""
        until = time.monotonic() + seconds
        while not self.has_ended and time.monotonic() < until:
            time.sleep(PAUSE)
        return self.has_ended

    def run(self, blow: Blow | None, chance: random.Random) -> Outcome:
        """Wait for the end, and send a signal when its moment has come; a hang or another exit code is a fault."""
        had_begun = was_hit = False
        if blow is not None:
            if blow.has_begun:
                self.wait_to_begin()
            self.wait(blow.seconds)
            had_begun = self.has_begun
            was_hit = not self.has_ended and self._send(blow, chance)
        # A rank that died alone while all started leaves others that wait for it.
        if was_hit and self.scenario.ranks > 1 and not had_begun and not self.wait(5):
            self._send_to(self.processes, signal.SIGTERM)
        fault = None if self.wait(LONGEST) else f"hangs for {LONGEST:.0f} s after {blow}"
        fault = fault or self._wait_for_children()
        self.end()
        codes = [process.returncode for process in self.processes]
        was_hit = was_hit and any(codes)
        if fault is None and blow is not None and was_hit:
            fault = self._wrong_code(blow, codes, had_begun) or self._unsaved(codes, had_begun)
        elif fault is None and any(codes):
            fault = f"ended with {codes}, and nobody had told it to"
        return Outcome(codes, was_hit, fault)

    def _send(self, blow: Blow, chance: random.Random) -> bool:
        """Deliver a signal; false where there was nobody left to get it."""
        if blow.victims == "all":
            return self._send_to(self.processes, blow.signal)
        process = chance.choice(self.processes)
        if blow.victims == "one" and self.scenario.ranks == 1 and blow.signal == signal.SIGKILL:
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
            with suppress(OSError, IndexError, ProcessLookupError):
                os.kill(int(chance.choice(children.read_text().split())), signal.SIGKILL)
                return True
        return self._send_to([process], blow.signal)

    def _send_to(self, processes: Sequence[subprocess.Popen[bytes]], kind: signal.Signals) -> bool:
        """Send a signal to processes; to their groups, where it is SIGKILL to all."""
        sent = False
        for process in processes:
            while self.scenario.stops and kind != signal.SIGKILL and not catches(process, kind):
                time.sleep(PAUSE)  # Python itself starts; there a signal ends any program
            if process.poll() is None:
                (os.killpg if kind == signal.SIGKILL and len(processes) > 1 else os.kill)(process.pid, kind)
                sent = True
        return sent

    def _wait_for_children(self) -> str | None:
        """What a killed command has started must end as well."""
        until = time.monotonic() + LONGEST
        while left := [process.pid for process in self.processes if is_alive(process.pid)]:
            if time.monotonic() > until:
                return f"processes of the groups {left} are left"
            time.sleep(PAUSE)
        return None

    def _wrong_code(self, blow: Blow, codes: list[int], had_begun: bool) -> str | None:
        """A run that is told to stop ends with 3. While it starts, Ctrl-C just ends it, and so does a rank's end."""
        if blow.signal == signal.SIGKILL or not self.scenario.stops:
            return None
        allowed = {STOPPED, 0}
        if not had_begun and (blow.signal == signal.SIGINT or self.scenario.ranks > 1):
            allowed |= {1, 2, 130, -signal.SIGINT}
        if had_begun and b'"finished": true' in (self.folder / "runs/run/events.jsonl").read_bytes():
            allowed |= {-blow.signal, 130}  # all was done, and the process was about to end
        return None if set(codes) <= allowed else f"ended with {codes} after {blow}"

    def _unsaved(self, codes: list[int], had_begun: bool) -> str | None:
        """A run that has stopped with 3 has saved its last step."""
        if not had_begun or set(codes) != {STOPPED}:
            return None
        run = RunFolder(self.folder / "runs/run")
        taken, saved = max(steps_taken(run.events), default=0), run.last_step() or 0
        return None if taken == saved else f"stopped after step {taken}, and the last checkpoint is of step {saved}"

    def end(self) -> None:
        """Leave no process behind, whatever happened."""
        for process in self.processes:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def catches(process: subprocess.Popen[bytes], kind: signal.Signals) -> bool:
    """Whether a process has a handler for a signal, or has ended."""
    if process.poll() is not None:
        return True
    status = Path(f"/proc/{process.pid}/status").read_text()
    caught = next((line for line in status.splitlines() if line.startswith("SigCgt:")), "SigCgt: 0")
    return bool(int(caught.split()[1], 16) >> (kind - 1) & 1)


def is_alive(group: int) -> bool:
    """Whether a process group has a process that runs."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _, its_group = stat.read_text().rpartition(") ")[2].split()[:3]
            if int(its_group) == group and state not in "ZX":
                return True
    return False

"""A job -> as many processes of this machine as it has ranks, and the run that they leave behind."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from trivium.cores import available_cores
from trivium.errors import UsageError
from trivium.prove.worker import Job
from trivium.run.folder import RunFolder

RUN = "run"  # the name that every run has, each in a folder of its own


@dataclass(frozen=True, slots=True)
class Launcher:
    """Launches the first steps of a config again and again, each run in a folder of its own."""

    config: Path
    overrides: Sequence[str]
    dialect: str | None
    steps: int
    folder: Path

    def run(self, name: str, ranks: int, *more: str, dies_at: int | None = None) -> RunFolder:
        """Take the steps on this many ranks; with `dies_at`, kill all of them on the way and start them again."""
        folder = self.folder / name
        folder.mkdir()
        own = (f"run.folder={folder.as_posix()}", f"run.name={RUN}", "track.trackers=[]", "checkpoint.copy_to=")
        overrides = [*self.overrides, *own, f"checkpoint.every={max(1, self.steps // 4)}", *more]
        job = Job(str(self.config), overrides, self.dialect, self.steps)
        if dies_at is not None:
            killed = Job(str(self.config), overrides, self.dialect, self.steps, dies_at)
            self._launch(killed, ranks, folder / "killed.log", -signal.SIGKILL)
        self._launch(job, ranks, folder / "log", 0)
        return RunFolder(folder / RUN)

    def _launch(self, job: Job, ranks: int, log: Path, expected: int) -> None:
        command = [sys.executable, "-P", "-m", "trivium.prove.worker", json.dumps(asdict(job))]
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        home = str(Path(__file__).parents[2])
        paths = [home, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
        together = {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
        together["OMP_NUM_THREADS"] = os.environ.get("OMP_NUM_THREADS", str(max(1, available_cores() // ranks)))
        together |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "PYTHONPATH": os.pathsep.join(paths)}
        with open(log, "wb") as file:
            processes = [
                subprocess.Popen(
                    command,
                    env={**os.environ, **together, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                )
                for rank in range(ranks)
            ]
            try:
                codes = [process.wait() for process in processes]
            finally:
                for process in processes:
                    process.kill()
        if codes != [expected] * ranks:
            said = log.read_text(errors="replace").strip().splitlines()
            last = said[-1] if said else "it printed nothing"
            raise UsageError(f"a launch on {ranks} ranks ended with {codes}, not {expected}: {last} (all of it: {log})")

"""A Slurm cluster of one node on this machine: Debian's daemons without systemd, in a folder of their own."""

import os
import re
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

COMMANDS = ("munged", "slurmctld", "slurmd", "sbatch", "srun")
PATIENCE = 120.0  # seconds
CONF = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
AuthType=auth/munge
# A job that was queued again waits until the credentials of its last launch are over, for 120 seconds by default.
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CredType=cred/munge
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SchedulerParameters=sched_interval=1,batch_sched_delay=0
GresTypes=gpu
NodeName={host} NodeAddr=127.0.0.1 CPUs=16 Gres=gpu:8
PartitionName=low Nodes={host} Default=YES PriorityTier=1 PreemptMode=REQUEUE GraceTime=60
PartitionName=high Nodes={host} PriorityTier=2 PreemptMode=OFF
"""


class Slurm:
    """A cluster that runs; jobs in the partition `high` preempt those in `low`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}

    def ask(self, *command: str) -> str:
        """What a command of Slurm prints."""
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def submit(self, script: Path, *options: str, environment: Mapping[str, str] | None = None) -> str:
        """The number of a new job, which runs in its script's folder."""
        command = ["sbatch", "--parsable", *options, str(script)]
        known = {**self.environment, **(environment or {})}
        done = subprocess.run(command, env=known, cwd=script.parent, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def job(self, number: str) -> dict[str, str]:
        """What Slurm knows of a job, such as `JobState` and `Restarts`."""
        return dict(re.findall(r"(\w+)=(\S*)", self.ask("scontrol", "show", "job", number)))


def until(is_so: Callable[[], bool], what: str) -> None:
    """Wait for something to be so."""
    deadline = time.monotonic() + PATIENCE
    while not is_so():
        if time.monotonic() > deadline:
            pytest.fail(f"never so: {what}")
        time.sleep(0.1)


@contextmanager
def slurm_cluster(folder: Path) -> Iterator[Slurm]:
    """Start the daemons, and end them; where they are not installed the tests are skipped, but for CI."""
    missing = [name for name in COMMANDS if shutil.which(name) is None]
    if missing or os.getuid():
        what = f"needs {', '.join(missing)}: apt-get install slurmctld slurmd munge" if missing else "needs root"
        if os.environ.get("TRIVIUM_NEEDS_SLURM"):
            pytest.fail(what)
        pytest.skip(what)
    slurm = Slurm(folder)
    _write_settings(folder)
    daemons = []

    def start(*command: str) -> None:
        with open(folder / f"{command[0]}.log", "wb") as log:
            daemons.append(subprocess.Popen(command, env=slurm.environment, stdout=log, stderr=log))

    try:
        kept = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        start("munged", "--foreground", "--force", *(f"--{key}={folder}/munge.{name}" for key, name in kept.items()))
        until((folder / "munge.socket").exists, "munged listens")
        start("slurmctld", "-D", "-c")
        start("slurmd", "-D", "-c")
        until(lambda: "idle" in _nodes(slurm), "the node is idle")
        yield slurm
    finally:
        if daemons[1:]:
            subprocess.run(["scancel", "--user=root", "--full", "--signal=KILL"], env=slurm.environment, check=False)
            time.sleep(0.5)
        for daemon in reversed(daemons):
            daemon.terminate()
            daemon.wait()


def _nodes(slurm: Slurm) -> str:
    """The node's state; empty while the controller does not answer yet."""
    command = ["sinfo", "--noheader", "--format=%T"]
    return subprocess.run(command, env=slurm.environment, capture_output=True, text=True, check=False).stdout


def _write_settings(folder: Path) -> None:
    host = socket.gethostname().partition(".")[0]
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        ports = one.getsockname()[1], other.getsockname()[1]
    for name in ("state", "spool"):
        (folder / name).mkdir()
    for number in range(8):
        (folder / f"gpu{number}").touch()
    (folder / "munge.key").write_bytes(secrets.token_bytes(128))
    (folder / "munge.key").chmod(0o400)
    (folder / "slurm.conf").write_text(CONF.format(folder=folder, host=host, ports=ports))
    (folder / "gres.conf").write_text(f"NodeName={host} Name=gpu File={folder}/gpu[0-7]\n")

"""The script that the docs show, on a real cluster: what Slurm sends, the run answers, and the job goes on or ends."""

import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.corpus import write_source
from tests.support.slurm import Slurm, slurm_cluster, until
from tests.support.training import SMALL_MODEL
from trivium.run.events import read_events

ROOT = Path(__file__).parents[2]
CONFIG = (
    SMALL_MODEL
    + """
vocab = 512
[checkpoint]
every = { minutes = 10 }
[sources.web]
kind = "tokens"
path = "web"
[[stages]]
name = "general"
steps = 200_000
mixture = { web = 1.0 }
seq_len = 16
batch_size = 2
"""
)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Slurm]:
    (tmp_path / "cluster").mkdir(mode=0o755)
    with slurm_cluster(tmp_path / "cluster") as slurm:
        yield slurm


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """The script as the docs have it, beside a config, sources and the program that it starts."""
    write_source(tmp_path / "web", [[50] * 10])
    (tmp_path / "run.toml").write_text(CONFIG)
    (tmp_path / "trivium").write_text(f'#!/bin/sh\nexec {sys.executable} -m trivium "$@"\n')
    (tmp_path / "trivium").chmod(0o755)
    shown = re.search(r"```bash\n(#!/bin/bash\n#SBATCH.*?)```", (ROOT / "docs/many-machines.md").read_text(), re.DOTALL)
    assert shown is not None
    path = tmp_path / "train.sh"
    path.write_text(shown[1])
    return path


@pytest.mark.slow
def test_the_script_of_the_docs_goes_on_after_a_preemption_and_a_time_limit_and_ends_with_a_killed_rank(
    cluster: Slurm, script: Path
) -> None:
    folder = script.parent
    environment = {"PATH": f"{folder}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    options = ("--nodes=1", "--ntasks-per-node=2", "--cpus-per-task=1", "--time=60", f"--output={folder}/out.txt")
    job = cluster.submit(script, *options, environment=environment)

    def events(kind: str) -> list[dict[str, Any]]:
        path = folder / "runs/run/events.jsonl"
        return [event for event in read_events(path) if event["event"] == kind] if path.exists() else []

    def trains(launches: int) -> bool:
        """Whether the last launch, of this number, has taken steps."""
        begun, taken = events("started"), events("step")
        return len(begun) == launches and bool(taken) and taken[-1]["step"] > begun[-1]["step"] + 5

    def restarts() -> int:
        return int(cluster.job(job)["Restarts"])

    until(lambda: trains(1), "the run trains")
    preempting = folder / "other.sh"
    preempting.write_text("#!/bin/sh\ntrue\n")
    cluster.submit(preempting, "--partition=high", "--exclusive", f"--output={folder}/other.txt")
    until(lambda: restarts() == 1, "the preempted job is queued again")
    assert [event["signal"] for event in events("preempted")] == ["SIGTERM"]
    saved = events("saved")[-1]["step"]

    until(lambda: trains(2), "the preempted job goes on")
    assert (events("started")[1]["resumed"], events("started")[1]["step"]) == (True, saved)
    cluster.ask("scontrol", "update", f"JobId={job}", "TimeLimit=3")  # the script asks for USR1 180 s before
    until(lambda: restarts() == 2, "the job whose time is nearly over is queued again")
    assert [event["signal"] for event in events("preempted")] == ["SIGTERM", "SIGUSR1"]
    cluster.ask("scontrol", "update", f"JobId={job}", "TimeLimit=60")

    until(lambda: trains(3), "the job whose time was nearly over goes on")
    os.kill(rank_of_job(job, 1), signal.SIGKILL)
    until(lambda: cluster.job(job)["JobState"] == "FAILED", "the job of a killed rank ends")
    assert restarts() == 2


def rank_of_job(job: str, rank: int) -> int:
    """The process of a rank."""
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            environment, command = path.read_bytes().split(b"\0"), (path.parent / "cmdline").read_bytes()
        except OSError:
            continue
        of_rank = {f"SLURM_JOB_ID={job}".encode(), f"SLURM_PROCID={rank}".encode()}
        if of_rank <= {*environment} and b"trivium\0train" in command:
            return int(path.parent.name)
    pytest.fail("the rank is not there")

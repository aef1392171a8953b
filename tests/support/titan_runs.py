"""Runs of torchtitan with stages: their config, how a launch is made, and what it leaves."""

import json
import os
import socket
import subprocess
from collections.abc import Sequence
from hashlib import blake2b
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.support.titan_env import ROOT, titan_python

# Three stages of 4 steps: rows of 32, 64 and 16 tokens, and 8, 16 and 16 of them.
STAGES = """
[run]
name = "run"
[optimizer]
lr = { embedding = 0.002, rest = 0.003 }
grad_clip = 1.0
[schedule]
shape = "cosine"
warmup = { steps = 2 }
[evaluate]
every = 6
tokens = 400
seq_len = 16
[sources.web]
kind = "tokens"
path = "web"
validation = 0.2
[sources.code]
kind = "tokens"
path = "code"
validation = 0.2
[[stages]]
name = "one"
steps = 4
mixture = { web = 0.75, code = 0.25 }
seq_len = 32
batch_size = 8
[[stages]]
name = "two"
steps = 4
mixture = { web = 0.5, code = 0.5 }
fade = { steps = 2 }
seq_len = 64
batch_size = 16
rope = { theta = 50_000 }
lr = { scale = 0.5 }
goldfish = { k = 4, h = 3 }
optimizer = { grad_clip = 0.5, weight_decay = 0.2 }
[[stages]]
name = "three"
steps = 4
mixture = { code = 1.0 }
seq_len = 16
batch_size = 16
document_mask = false
reset_optimizer = true
"""


def hash_row(tokens: NDArray[Any], targets: NDArray[Any], positions: NDArray[Any]) -> str:
    """Of all that a model is given of a row."""
    parts = (np.ascontiguousarray(each, np.int64).tobytes() for each in (tokens, targets, positions))
    return blake2b(b"".join(parts), digest_size=16).hexdigest()


def launch(ranks: int, *runs: tuple[Path, Sequence[str]], code: int = 0) -> list[str]:
    """Train in folders, one after another, with the environment that torchrun would give each rank.

    A folder comes with overrides of the config, and then options of torchtitan: with `--config` among them the launch
    is torchtitan's own. Gives what each rank printed.
    """
    chain = []
    for folder, options in runs:
        folder.mkdir(exist_ok=True)
        with socket.create_server(("127.0.0.1", 0)) as found:
            port = found.getsockname()[1]
        overrides = list(takewhile(lambda each: not each.startswith("-"), options))
        given = ["--module", "tests.support.titan_configs", "--dump-folder", ".", *options[len(overrides) :]]
        if "--config" not in options:
            given = ["../run.toml", *overrides, *given, "--config", "tiny"]
        chain.append([str(folder), port, given])
    started = []
    logs = [runs[0][0] / f"rank-{rank}.log" for rank in range(ranks)]
    for rank, log in enumerate(logs):
        mine = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "MASTER_ADDR": "127.0.0.1", "PYTHONPATH": ROOT}
        mine |= {"TORCH_COMPILE_DISABLE": 1, "PYTHONWARNINGS": "ignore"}
        environment = os.environ | {key: str(value) for key, value in mine.items()}
        command = [str(titan_python()), "-m", "tests.support.titan_chain", json.dumps(chain)]
        with log.open("w") as file:
            started.append(subprocess.Popen(command, env=environment, stdout=file, stderr=file))
    codes = [process.wait() for process in started]
    printed = [log.read_text() for log in logs]
    assert codes == [code] * ranks, "\n".join(printed)
    return printed


def figures(folder: Path) -> dict[int, dict[str, float]]:
    """What a run logged of each step: loss, grad_norm and rates, and where it was evaluated that too."""
    found: dict[int, dict[str, float]] = {}
    for line in (folder / "figures.jsonl").read_text().splitlines():
        entry = json.loads(line)
        found.setdefault(entry["step"], {}).update(entry)
    return found


def losses(folder: Path) -> dict[int, float]:
    """The loss of each step."""
    return {step: entry["loss_metrics/global_avg_loss"] for step, entry in figures(folder).items()}


def validation(folder: Path) -> dict[int, dict[str, float]]:
    """By step the loss of all held-out rows and of each source."""
    key = "validation_metrics/loss"
    return {
        step: {name.removeprefix(key).strip("/"): loss for name, loss in entry.items() if name.startswith(key)}
        for step, entry in figures(folder).items()
        if key in entry
    }


def rows_read(folder: Path, rank: int) -> list[str]:
    """The hashes of the rows that a rank was given, in order."""
    return (folder / f"rows-{rank}.txt").read_text().split()

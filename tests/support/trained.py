"""A few steps of a tiny engine in a process of its own: `python -m tests.support.trained torch|jax RANKS FOLDER`."""

import os
import subprocess
import sys
from pathlib import Path

from tests.support.batches import TINY, make_batch, settings_at
from tests.support.forked import launch
from trivium.engine.base import EngineSettings, OptimizerSettings, StageSettings
from trivium.engine.make import join_ranks, make_engine
from trivium.engine.mesh import MeshShape

ROOT = Path(__file__).parents[2]


def train(engine: str, ranks: int, folder: Path) -> Path:
    """Start the process, wait for it, and give the folder that its engine saved."""
    command = [sys.executable, "-m", "tests.support.trained", engine, str(ranks), str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return folder


def take_steps(name: str, ranks: int, folder: Path) -> None:
    """On each rank: three steps on its rows, then a save."""
    rank = join_ranks(name).rank
    mesh = MeshShape(shard=ranks)
    engine = make_engine(EngineSettings(TINY, OptimizerSettings("muon"), seed=3, device="cpu", mesh=mesh), name)
    engine.enter(StageSettings(TINY.max_seq_len))
    for step in range(3):
        batch = make_batch(seed=step)
        size = batch.num_rows // ranks
        engine.step(batch.rows(rank * size, (rank + 1) * size), settings_at(step))
    engine.save(folder).wait()


if __name__ == "__main__":
    name, ranks, folder = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    if ranks == 1:
        take_steps(name, ranks, folder)
    else:
        sys.exit(max(launch(ranks, lambda: take_steps(name, ranks, folder))))

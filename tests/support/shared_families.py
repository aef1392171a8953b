"""Losses of tiny models of every family, native and of transformers, on one process and where two ranks share them.

Executed by itself: `python -m tests.support.shared_families native` (or `transformers`). Prints as JSON, by the model's
name, how far a token's loss is on two ranks from one process, at most, where they share rows (`context`) or matrices
(`tensor`); null where a family's matrices cannot be split.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

from tests.support.batches import make_batch
from tests.support.forked import launch
from trivium.engine.base import EngineSettings, StageSettings
from trivium.engine.make import join_ranks
from trivium.engine.mesh import MeshShape
from trivium.engine.torch.engine import TorchEngine
from trivium.errors import ConfigError
from trivium.model.folder import read_spec
from trivium.model.spec import ModelSpec

SLOTS = 40
ROWS = ((13, 17, 10), (40,), (20, 11))
LAYOUTS = {"one": MeshShape(), "context": MeshShape(context=2), "tensor": MeshShape(tensor=2)}
Shared = dict[str, dict[str, float | None]]


def shared_families(kind: str) -> Shared:
    """What a process of its own finds of all models of a kind, since a launch forks."""
    root = str(Path(__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": root, "PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.support.shared_families", kind]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    found: Shared = json.loads(ran.stdout.splitlines()[-1])
    return found


def specs_of(kind: str, folder: Path) -> dict[str, ModelSpec]:
    """The shape of every model of a kind."""
    if kind == "transformers":
        from tests.engine.torch.transformers.families import FAMILIES, tiny

        return {family: tiny(family) for family in FAMILIES}
    from tests.support.families import MODELS, their_config

    found = {}
    for name in MODELS:
        their_config(name).save_pretrained(folder / name)
        found[name] = read_spec(folder / name)
    return found


def main() -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        specs = specs_of(sys.argv[1], folder)
        for size in (1, 2):
            codes = launch(size, lambda: measure(specs, folder))
            assert codes == [0] * size, codes
        nats = {name: json.loads((folder / f"{name}.json").read_text()) for name in LAYOUTS}
    found: Shared = {model: {} for model in specs}
    for name in ("context", "tensor"):
        for model, figure in nats[name].items():
            alone = np.array(nats["one"][model])
            found[model][name] = None if figure is None else float(np.abs(np.array(figure) - alone).max())
    print(json.dumps(found))  # noqa: T201


def measure(specs: dict[str, ModelSpec], folder: Path) -> None:
    """On one rank of a launch: every layout of its size."""
    ranks = join_ranks()
    for name, mesh in LAYOUTS.items():
        if mesh.size == ranks.size:
            found = {model: nats(spec, mesh) for model, spec in specs.items()}
            if ranks.is_main:
                (folder / f"{name}.json").write_text(json.dumps(found))


def nats(spec: ModelSpec, mesh: MeshShape) -> list[list[float]] | None:
    """The losses of every token of rows with several documents."""
    try:
        engine = TorchEngine(EngineSettings(spec, seed=1, mesh=mesh, device="cpu"))
    except ConfigError:
        return None
    engine.enter(StageSettings(SLOTS, context=mesh.context))
    found: list[list[float]] = engine.nats(make_batch(ROWS, seq_len=SLOTS, vocab=spec.vocab)).tolist()
    return found


if __name__ == "__main__":
    main()

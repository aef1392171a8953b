"""A model on several devices of one process: its parts, its checkpoints handed from mesh to mesh.

Executed by itself, with four devices: `python -m tests.engine.jax.devices FOLDER`. Prints what a test compares.
"""

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"

import numpy as np
from jax import Array

from tests.support.batches import SEQ_LEN, TINY, make_batch, settings_at
from trivium.ask.generate.generate import generate
from trivium.ask.generate.row import Writing
from trivium.ask.generate.sampling import GREEDY
from trivium.engine.base import EngineSettings, KlSettings, OptimizerSettings, StageSettings
from trivium.engine.jax import huggingface
from trivium.engine.jax.engine import JaxEngine
from trivium.engine.jax.model import Design
from trivium.engine.jax.optim import BuiltInOptimizer
from trivium.engine.jax.sharding import device_mesh, own_rows, placed, put_rows, rows_multiple, sharded_init
from trivium.engine.jax.state import StateWriter, named_leaves, read_state, room_for, saved_shapes
from trivium.engine.jax.weights import read_weights
from trivium.engine.mesh import MeshShape

TEACHER = replace(TINY, layers=3, width=48, head_dim=16, ffn=96, vocab=TINY.vocab + 200)
PROMPTS = [[1, 2, 3], [4, 5, 6, 7], [8, 9, 10]]
MESHES = {"1": MeshShape(), "4": MeshShape(shard=4), "2x2": MeshShape(2, 2), "2t2": MeshShape(shard=2, tensor=2)}


def held(arrays: dict[str, Array]) -> list[int]:
    """Numbers that each device holds."""
    sizes: dict[int, int] = {}
    for array in arrays.values():
        for shard in array.addressable_shards:
            sizes[shard.device.id] = sizes.get(shard.device.id, 0) + shard.data.size
    return [sizes[device] for device in sorted(sizes)]


def digest(arrays: dict[str, Array]) -> dict[str, float]:
    """Sums that tell arrays apart to the bit."""
    return {
        name: int(np.frombuffer(np.asarray(array).tobytes(), np.uint8).astype(np.int64).cumsum().sum())
        for name, array in arrays.items()
    }


def written(shape: MeshShape) -> list[list[int]]:
    """What a model on these devices writes after the prompts."""
    engine = JaxEngine(EngineSettings(TINY, device="cpu", seed=7, mesh=shape))
    engine.enter(StageSettings(SEQ_LEN))
    rows = generate(engine, [np.array(prompt) for prompt in PROMPTS], Writing(6, sampling=GREEDY))
    return [list(map(int, row.tokens)) for (row,) in rows]


def changed(folder: Path, shape: MeshShape) -> dict[str, Any]:
    """Grow beside a teacher with frozen layers, from the seed's weights: the grown weights, and a step's figures."""
    if not (folder / "teacher").exists():
        JaxEngine(EngineSettings(TEACHER, device="cpu", seed=3)).export(folder / "teacher")
    engine = JaxEngine(EngineSettings(TINY, device="cpu", seed=7, mesh=shape))
    distill = KlSettings(0.5, folder / "teacher", temperature=2.0, top_k=5, spec=TEACHER)
    engine.enter(StageSettings(SEQ_LEN, vocab=TEACHER.vocab, freeze=("layers.0", "norm"), distill=distill))
    grown = digest(engine.state.params)
    stats = engine.step(make_batch(), settings_at())
    frozen = [name for name, value in digest(engine.state.params).items() if value == grown[name]]
    return {"grown": grown, "loss": stats.loss, "norm": stats.grad_norm, **stats.extra, "frozen": frozen}


def main(folder: Path) -> dict[str, Any]:
    """Every mesh makes the same model, and reads what the one before wrote."""
    design, found = Design(TINY), {}
    optimizer = BuiltInOptimizer(OptimizerSettings("muon"))
    writer = StateWriter()
    for number, (name, shape) in enumerate(MESHES.items()):
        mesh = device_mesh(shape)
        params, shardings = sharded_init(design, 7, mesh=mesh)
        state = placed(optimizer.init(params), mesh)
        rows = np.arange(2 * 4 * 3).reshape(2, 4, 3)
        found[name] = {
            "held": held(params),
            "optimizer held": held(named_leaves(state)),
            "same places": all(array.sharding == shardings[each] for each, array in params.items()),
            "initial": digest(params),
            "rows": np.array_equal(own_rows(put_rows(rows, mesh)), rows),
            "multiple": rows_multiple(mesh),
            "written": written(shape),
            "changed": changed(folder, shape),
        }
        whole = {"weights": params, "optimizer": named_leaves(state)}
        if number:
            target = {part: room_for(dict(leaves)) for part, leaves in whole.items()}
            whole = read_state(folder / str(number - 1), target)
            found[name]["places read"] = all(
                array.sharding == target[part][each].sharding for part in whole for each, array in whole[part].items()
            )
        else:
            params = {each: array * 2 for each, array in params.items()}
            whole = {"weights": params, "optimizer": {each: leaf + 3 for each, leaf in named_leaves(state).items()}}
        found[name]["handed on"] = digest(whole["weights"]) | digest(whole["optimizer"])
        handle = writer.save(folder / str(number), TINY, whole, background=True)
        found[name]["files"] = sorted(handle.wait())
        found[name]["shapes"] = {part: len(leaves) for part, leaves in saved_shapes(folder / str(number), TINY).items()}
        huggingface.write_folder(whole["weights"], TINY, TINY.rope, 16, folder / f"hf-{number}", shard_bytes=20_000)
        read = read_weights(folder / f"hf-{number}", room_for(params), TINY)
        found[name]["hugging face"] = digest(read)
    return found


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]))))  # noqa: T201

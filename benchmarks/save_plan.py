"""What a save has to plan on many ranks: who writes which part of which tensor, and the table of it in tensors.json.

    python benchmarks/save_plan.py             8B parameters with AdamW on 256 and 1,024 ranks, half a minute
    python benchmarks/save_plan.py --small     seconds, to see that it works

One process plays rank 0 under torch's fake process group, on a model without storage. Shown are seconds of the
processor: the first save's plan, a later one's, and the writing and reading of the table, with its size.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from trivium.engine.mesh import MeshShape
from trivium.engine.torch.checkpoint.parts import planned
from trivium.engine.torch.checkpoint.storage import read_index, write_index
from trivium.engine.torch.measure.replace import replaced_in_engine
from trivium.engine.torch.model import Decoder
from trivium.engine.torch.parallel import ShardedModel
from trivium.engine.torch.ranks import TorchRanks, join
from trivium.model.folder import TORCH_INDEX
from trivium.model.spec import ModelSpec

LARGE = ModelSpec(
    layers=32, width=4096, heads=32, kv_heads=8, head_dim=128, ffn=14_336, vocab=128_256, max_seq_len=8192
)
SMALL = ModelSpec(layers=2, width=64, heads=8, kv_heads=8, head_dim=8, ffn=128, vocab=256, max_seq_len=64)
LAYOUTS = {256: (MeshShape(shard=256), MeshShape(replicate=4, shard=8, tensor=8)), 1024: (MeshShape(shard=1024),)}
LAYOUTS[1024] += (MeshShape(replicate=8, shard=16, tensor=8),)
PARTS = ("weights/{}", "optimizer/{}:exp_avg", "optimizer/{}:exp_avg_sq")


def seconds(act: Callable[[], Any]) -> tuple[float, Any]:
    """Of the processor, and what came of it."""
    worked = time.process_time()
    found = act()
    return time.process_time() - worked, found


def measure(spec: ModelSpec, shape: MeshShape) -> None:
    """One layout: a line of the table."""
    store = FakeStore()
    dist.init_process_group("fake", store=store, rank=0, world_size=shape.size)
    with replaced_in_engine(join, lambda: TorchRanks(store, 0, shape.size)), torch.device("meta"):
        held = ShardedModel(Decoder(spec), shape, torch.device("cpu"))
    state = {part.format(name): each.detach() for name, each in held.model.weights().items() for part in PARTS}
    state |= {f"optimizer/{name}:step": torch.tensor(1.0) for name in held.model.weights()}
    first, plan = seconds(lambda: planned(state, held.mesh))
    again, _ = seconds(lambda: planned(state, held.mesh))
    with tempfile.TemporaryDirectory() as folder:
        written, _ = seconds(lambda: write_index(Path(folder), plan))
        read, _ = seconds(lambda: read_index(Path(folder)))
        size = (Path(folder) / TORCH_INDEX).stat().st_size / 1e6
    dist.destroy_process_group()
    layout = f"{shape.size:,} ranks: {shape.replicate} x {shape.shard} x {shape.tensor}"
    print(f"  {layout:<28}{first:>9.2f}{again:>9.2f}{written:>9.2f}{read:>9.2f}{size:>9.1f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true")
    small = parser.parse_args().small
    print(f"  {'replicate x shard x tensor':<28}{'plan, s':>9}{'later':>9}{'write':>9}{'read':>9}{'MB':>9}")
    for ranks, shapes in LAYOUTS.items():
        for shape in shapes[-1:] if small and ranks == 256 else () if small else shapes:
            measure(SMALL if small else LARGE, shape)


if __name__ == "__main__":
    main()

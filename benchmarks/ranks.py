"""What many ranks cost: training through the Trainer on two ranks beside a bare FSDP2 loop of the same model.

    python benchmarks/ranks.py            about four minutes
    python benchmarks/ranks.py --small    half a minute, to see that it works

The CPU, gloo, float32, eager, one thread a rank, fused AdamW, gradients clipped. The bare loop is what one writes by
hand: `fully_shard` on each layer and on the model, forward, backward, torch's `clip_grad_norm_`, one fixed random
batch, gradients averaged over ranks. The Trainer reads its batches, counts learnt tokens over all ranks, writes
events, and has the ranks agree on every step. Both take turns in the same processes, two steps at a time, in an order
that changes from round to round; shown are medians over the rounds. A core that the machine takes away for a moment
stops both ranks, so that many short rounds say more than few long ones.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from bench_run import SMALL, Size, Stretches, make_config
from plain_loops import PlainLoop, random_batch
from rounds_table import in_turn, line, print_columns, ratios, title
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from trivium.engine.torch.checkpoint.weights import init_weights
from trivium.engine.torch.layers import Rotation
from trivium.engine.torch.loss import Objective
from trivium.engine.torch.model import Decoder, DeviceBatch
from trivium.model.spec import ModelSpec

RANKS = 2
WARM_STEPS = 2
TRAINER, BARE = "trivium, Trainer", "bare FSDP2 loop"


def bare_fsdp(spec: ModelSpec, num_rows: int, seq_len: int) -> PlainLoop:
    """The decoder sharded over all ranks, on this rank's rows of a fixed batch."""
    mesh = init_device_mesh("cpu", (RANKS,), mesh_dim_names=("shard",))
    with torch.device("meta"):
        model = Decoder(spec, torch.float32)
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    model.to_empty(device="cpu")
    init_weights(model, 0)
    table = Rotation.table(spec.rope, spec.head_dim, seq_len, torch.device("cpu"))
    rows = DeviceBatch.of(random_batch(spec.vocab, num_rows // RANKS, seq_len), table, False)
    objective = Objective(scale=RANKS / (num_rows * seq_len))

    def loss() -> Tensor:
        objective_of_batch: Tensor = model(rows, objective).objective
        return objective_of_batch

    return PlainLoop.of(model, loss)


def on_a_rank(folder: Path, size: Size, rounds: int) -> None:
    """Both loops in turn; rank 0 prints."""
    torch.set_num_threads(1)
    steps = WARM_STEPS + rounds * size.stretch + 64
    trainer = Stretches(make_config(folder, size, name="ranks", steps=steps), show=False)
    rates: dict[str, list[float]] = {TRAINER: [], BARE: []}
    with trainer.open_session():
        trainer.load()
        bare = bare_fsdp(trainer.plan.model, size.num_rows, size.seq_len)
        loops: dict[str, Callable[[int], None]] = {TRAINER: trainer.take, BARE: bare.take}
        for take in loops.values():
            take(WARM_STEPS)
        for turn in range(rounds):
            for name in in_turn(list(loops), turn):
                trainer.ranks.meet()
                begin = time.perf_counter()
                loops[name](size.stretch)
                trainer.ranks.meet()
                rates[name].append(size.stretch * size.num_rows * size.seq_len / (time.perf_counter() - begin))
        is_main = trainer.ranks.is_main
    if is_main:
        title(f"tokens/s on {RANKS} ranks, {size.num_rows} x {size.seq_len}")
        for name, values in rates.items():
            line(name, values, ",.0f")
        line("ratio", ratios(rates[TRAINER], rates[BARE]), ".3f", "at least 0.97")


def main() -> None:
    """Launch the ranks, or be one of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=None, help="25, or 1 with --small")
    parser.add_argument("--small", action="store_true", help="a small model, short rows, one round")
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    size = replace(SMALL if options.small else Size(), stretch=2)
    rounds = options.rounds or (1 if options.small else 25)
    if options.folder is not None:
        on_a_rank(options.folder, size, rounds)
        return
    load = ", ".join(f"{one:.1f}" for one in os.getloadavg())
    shape = f"{size.layers} layers, width {size.width}, vocabulary {size.vocab:,}"
    print(f"{shape}; torch {torch.__version__}, {RANKS} ranks of one thread; {rounds} rounds; load before: {load}")
    print_columns("", ("median", "lowest to highest", "target"))
    with tempfile.TemporaryDirectory() as temporary:
        make_config(Path(temporary), size, name="ranks", steps=1)  # the source, before two ranks would make it
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)]
        own = [__file__, *sys.argv[1:], "--rounds", str(rounds), "--folder", temporary]
        subprocess.run([*launcher, *own], check=True, env=os.environ | {"OMP_NUM_THREADS": "1"})


if __name__ == "__main__":
    main()

"""What it costs to share rows: two ranks with half of every row each, beside the same ranks with rows of their own.

    python benchmarks/context.py            about ten minutes
    python benchmarks/context.py --small    half a minute, to see that it works

The CPU, gloo, float32, eager, one thread a rank, AdamW. A step has two rows of one document each, the most that a row
can ask of its ranks, one row a pass: a rank that shares rows takes two passes of half a row where the other takes one
of a whole row. All engines are in the same processes and take turns, a step at a time, in an order that changes from
round to round; shown are medians over the rounds. Activations are the most that a rank holds of them at once, counted
by torch's operations: whatever is neither weights, gradients, optimizer, gathered weights nor the loss.
"""

import argparse
import os
import subprocess
import sys
import time

import torch
from plain_loops import random_batch
from rounds_table import in_turn, line, print_columns, ratios, title

from trivium.engine.base import ContextMethod, EngineSettings, StageSettings, StepSettings
from trivium.engine.make import join_ranks
from trivium.engine.mesh import MeshShape
from trivium.engine.torch.engine import TorchEngine
from trivium.engine.torch.measure.step import Clock
from trivium.engine.torch.measure.storages import Storages
from trivium.model.spec import ModelSpec
from trivium.plan.rates import GROUPS
from trivium.rows.batch import Batch

RANKS = 2
APART = "rows of their own"
METHODS: tuple[ContextMethod, ...] = ("gather", "ulysses")
LENGTHS, SMALL_LENGTHS = (2048, 4096, 8192, 16_384), (256,)


class Steps:
    """An engine whose ranks share rows, by a method, or have rows of their own."""

    def __init__(self, spec: ModelSpec, seq_len: int, method: ContextMethod | None) -> None:
        mesh, by = MeshShape(shard=RANKS), method or "gather"
        self.engine = TorchEngine(EngineSettings(spec, mesh=mesh, device="cpu", micro_batch_size=1, context_method=by))
        self.engine.enter(StageSettings(seq_len, context=1 if method is None else RANKS))
        rows = random_batch(spec.vocab, RANKS, seq_len)
        rank = join_ranks().rank
        self.rows: Batch = rows.rows(rank, rank + 1) if method is None else rows

    def take(self) -> float:
        """The seconds of a step."""
        join_ranks().meet()
        begin = time.perf_counter()
        self.engine.step(self.rows, _now(self.rows))
        join_ranks().meet()
        return time.perf_counter() - begin

    def activations(self) -> float:
        """The most of them that a step holds, in MB."""
        storages = Storages()
        with storages.counting():
            clock = Clock(storages)
            with clock.watching(self.engine.model.layers):
                self.engine.step(self.rows, _now(self.rows))
        return max(parts["activations"] for parts in clock.peaks().values()) / 1e6


def _now(rows: Batch) -> StepSettings:
    rates = dict.fromkeys(GROUPS, 1e-4)
    return StepSettings(0, 0, rows.seq_len, RANKS, 0, 1.0, rates, momentum=0.9, weight_decay=0.1)


def on_a_rank(spec: ModelSpec, lengths: tuple[int, ...], rounds: int) -> None:
    """All engines in turn, at every length; rank 0 prints."""
    torch.set_num_threads(1)
    is_main = join_ranks().is_main
    for seq_len in lengths:
        each: dict[str, Steps] = {APART: Steps(spec, seq_len, None)}
        each |= {name: Steps(spec, seq_len, name) for name in METHODS}
        held = {name: steps.activations() for name, steps in each.items()}
        seconds: dict[str, list[float]] = {name: [] for name in each}
        for turn in range(rounds):
            for name in in_turn(list(each), turn):
                seconds[name].append(each[name].take())
        if not is_main:
            continue
        title(f"seconds of a step on {RANKS} ranks, {RANKS} x {seq_len:,}; MB of activations on a rank")
        for name, values in seconds.items():
            line(f"{name}: {held[name]:,.1f} MB", values, ".3f")
        for name in METHODS:
            line(f"{name}, seconds over {APART}", ratios(seconds[name], seconds[APART]), ".3f", "at most 1.15")
            line(f"{name}, MB over {APART}", [held[name] / held[APART]], ".3f", "about 0.5")


def main() -> None:
    """Launch the ranks, or be one of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=None, help="7, or 1 with --small")
    parser.add_argument("--small", action="store_true", help="a small model, short rows, one round")
    parser.add_argument("--lengths", type=int, nargs="+", default=None, help="tokens of a row; 2,048 to 16,384")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    layers, width, vocab = (2, 128, 512) if options.small else (4, 256, 4096)
    lengths = tuple(options.lengths or (SMALL_LENGTHS if options.small else LENGTHS))
    heads = width // 32
    spec = ModelSpec(layers, width, heads, heads // 2, 32, 3 * width, vocab, max(lengths))
    rounds = options.rounds or (1 if options.small else 7)
    if options.rank:
        on_a_rank(spec, lengths, rounds)
        return
    load = ", ".join(f"{one:.1f}" for one in os.getloadavg())
    shape = f"{layers} layers, width {width}, {heads} heads, {heads // 2} of keys, vocabulary {vocab:,}"
    print(f"{shape}; torch {torch.__version__}, {RANKS} ranks of one thread; {rounds} rounds; load before: {load}")
    print_columns("", ("median", "lowest to highest", "target"))
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)]
    own = [__file__, *sys.argv[1:], "--rounds", str(rounds), "--rank"]
    subprocess.run([*launcher, *own], check=True, env=os.environ | {"OMP_NUM_THREADS": "1"})


if __name__ == "__main__":
    main()

"""What a checkpoint costs: how long training stands still for it, beside a copy of the state in memory.

    python benchmarks/checkpoint.py            about three minutes, 5 GB of memory, 3 GB of disk
    python benchmarks/checkpoint.py --small    seconds, to see that it works

The CPU, one thread, float32, AdamW after one step, one process, through the Saver as a run uses it: a draft, hashes,
flushes, the commit. A save in the background stands still until the state is copied; what follows is written meanwhile,
and waited for here, before the next. The memory copy is of the same tensors, into memory that has been used before.
Everything takes turns; shown are medians over the rounds, with the lowest and highest, and the time that the processor
worked in the thread that trains, which other work on the machine changes little (it leaves out what is waited for). The
first save of a run also touches fresh memory: shown by itself.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from bench_run import SMALL, Size, make_config

from trivium.engine.torch.checkpoint.state import under
from trivium.engine.torch.engine import TorchEngine
from trivium.loader.loader import Loader
from trivium.plan.make import make_plan
from trivium.plan.settings import engine_settings, stage_settings
from trivium.run.folder import RunFolder
from trivium.run.saver import Retention, Saver

SIZES = {
    "10M": Size(layers=6, width=256, vocab=10_240, num_rows=1, seq_len=64, source_tokens=100_000),
    "100M": Size(layers=12, width=768, vocab=10_240, num_rows=1, seq_len=64, source_tokens=100_000),
}
REST = 0.05  # seconds beyond two copies


def stepped_engine(folder: Path, size: Size) -> TorchEngine:
    """An engine after a step, so that its optimizer has a state."""
    config = make_config(folder, size, name="checkpoint", steps=4)
    plan = make_plan(config).complete()
    engine = TorchEngine(engine_settings(config, plan.model))
    engine.enter(stage_settings(plan.stages[0].config, plan.stages[0].rope, begins=True))
    engine.step(Loader(plan, prefetch=0).batch(0), plan.settings_at(0))
    return engine


Seconds = tuple[float, float]
"""Of the clock, and of the processor in this thread."""


def seconds(act: Callable[[], object]) -> Seconds:
    """Of one call."""
    clock, worked = time.perf_counter(), time.thread_time()
    act()
    return time.perf_counter() - clock, time.thread_time() - worked


def medians(values: Sequence[Seconds]) -> Seconds:
    """Of both."""
    clock, worked = zip(*values, strict=True)
    return statistics.median(clock), statistics.median(worked)


def line(name: str, values: Sequence[Seconds], target: str = "") -> None:
    """A line of the table, in milliseconds."""
    clock, worked = medians(values)
    spread = f"{1000 * min(values)[0]:,.0f} to {1000 * max(values)[0]:,.0f}"
    print(f"  {name:<34}{1000 * clock:>10,.0f}{spread:>20}{1000 * worked:>12,.0f}{target:>14}", flush=True)


def measure(name: str, size: Size, rounds: int) -> None:
    """One size: all kinds in turn, then the table."""
    with tempfile.TemporaryDirectory() as temporary:
        engine = stepped_engine(Path(temporary), size)
        folder = RunFolder(Path(temporary) / "runs" / "checkpoint")
        saver = Saver(folder, Retention(1, frozenset(), 0), lambda event: None)
        state = {**under("w/", engine._weights()), **under("o/", dict(engine.optimizers.state()))}
        room = {key: tensor.clone() for key, tensor in state.items()}
        step = 0

        def save(*, background: bool) -> None:
            nonlocal step
            step += 1
            saver.save(engine, step, {}, "cadence", background=background)

        def copy() -> None:
            for key, tensor in state.items():
                room[key].copy_(tensor)

        first = seconds(lambda: save(background=True))
        saver.wait()
        copies, background, whole, foreground, loads = [], [], [], [], []
        for _ in range(rounds):
            copies.append(seconds(copy))
            background.append(seconds(lambda: save(background=True)))
            rest = seconds(saver.wait)
            whole.append((background[-1][0] + rest[0], background[-1][1] + rest[1]))
            foreground.append(seconds(lambda: save(background=False)))
            loads.append(seconds(lambda: engine.load(folder.checkpoints()[-1].engine)))
        written = sum(file["bytes"] for file in folder.checkpoints()[-1].files().values())
    limit = 2 * medians(copies)[1] + REST
    print(f"\n{name}: {engine.settings.spec.parameters:,} parameters, {written:,} bytes; milliseconds")
    line("copy of the state in memory", copies)
    line("stands still, in the background", background, f"at most {1000 * limit:,.0f}")
    line("... the first one of a run", [first])
    line("... until it is whole", whole)
    line("stands still, in the foreground", foreground)
    line("load", loads)


def main() -> None:
    """Measure every size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=None, help="7, or 1 with --small")
    parser.add_argument("--small", action="store_true", help="a small model, one round")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rounds = options.rounds or (1 if options.small else 7)
    load = ", ".join(f"{one:.1f}" for one in os.getloadavg())
    print(f"torch {torch.__version__}, one thread; {rounds} rounds; load before: {load}")
    print(f"{'':<36}{'median':>10}{'lowest to highest':>20}{'processor':>12}{'target':>14}")
    for name, size in ({"small": replace(SMALL, num_rows=1)} if options.small else SIZES).items():
        measure(name, size, rounds)


if __name__ == "__main__":
    main()

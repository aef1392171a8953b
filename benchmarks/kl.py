"""What KL to a frozen reference costs: whole steps of one engine with each direction, and plain ones, in turn.

    python benchmarks/kl.py            about three minutes
    python benchmarks/kl.py --small    seconds, to see that it works

The CPU, one thread, float32, eager, documents masked, packed by bestfit. The reference is the model's own first
checkpoint. Counted are the seconds that the processor worked for this process, which other work on the machine changes
little. What is compared takes turns within a round on the same batches, in an order that changes from round to round;
shown are medians over the rounds, of seconds and of ratios within a round, with the lowest and highest. One more
forward pass is a third of a step; the target leaves a tenth of a step for the two softmaxes.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from bench_run import SMALL, Size, make_config

from trivium.engine.base import Direction, KlSettings
from trivium.engine.make import make_engine
from trivium.loader.loader import Loader
from trivium.plan.make import make_plan
from trivium.plan.settings import engine_settings, stage_settings

DIRECTIONS: tuple[Direction, ...] = ("forward", "reverse", "nll_gap")
PLAIN = "plain"
WARM_STEPS = 1


class Steps:
    """Steps of one engine, with KL to its first weights or without."""

    def __init__(self, folder: Path, size: Size, steps: int) -> None:
        config = make_config(folder, size, name="kl", steps=steps, stage={"document_mask": True})
        self.plan = make_plan(config).complete()
        self.loader = Loader(self.plan, prefetch=0)
        self.engine = make_engine(engine_settings(config, self.plan.model))
        stage = stage_settings(self.plan.stages[0].config, self.plan.stages[0].rope, begins=True)
        self.engine.save(folder / "first", background=False).wait()
        self.stages = {PLAIN: stage} | {
            direction: replace(stage, kl=KlSettings(0.1, folder / "first", direction)) for direction in DIRECTIONS
        }

    def seconds(self, kind: str, first: int, count: int) -> float:
        """Of one step; the reference is loaded and the batches are made before the clock starts."""
        self.engine.enter(self.stages[kind])
        batches = [self.loader.batch(step) for step in range(first, first + count)]
        begin = time.process_time()
        for step, batch in enumerate(batches, first):
            self.engine.step(batch, self.plan.settings_at(step))
        return (time.process_time() - begin) / count


def line(name: str, values: Sequence[float], target: str = "") -> None:
    """A line of the table."""
    spread = f"{min(values):.3f} to {max(values):.3f}"
    print(f"{name:<24}{statistics.median(values):>10.3f}{spread:>20}{target:>16}", flush=True)


def main() -> None:
    """Measure in rounds, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=None, help="9, or 1 with --small")
    parser.add_argument("--small", action="store_true", help="a small model, short rows, one round")
    options = parser.parse_args()
    torch.set_num_threads(1)
    size = SMALL if options.small else Size()
    rounds = options.rounds or (1 if options.small else 9)
    load = ", ".join(f"{one:.1f}" for one in os.getloadavg())
    print(
        f"{size.layers} layers, width {size.width}, vocabulary {size.vocab:,}, {size.num_rows} x {size.seq_len}; "
        f"torch {torch.__version__}, one thread; {rounds} rounds; load before: {load}"
    )
    stretch = max(1, size.stretch // 4)
    with tempfile.TemporaryDirectory() as temporary:
        steps = Steps(Path(temporary), size, WARM_STEPS + rounds * stretch)
        for kind in steps.stages:
            steps.seconds(kind, 0, WARM_STEPS)
        seconds: dict[str, list[float]] = {kind: [] for kind in steps.stages}
        for turn in range(rounds):
            for kind in list(seconds) if turn % 2 == 0 else list(reversed(seconds)):
                seconds[kind].append(steps.seconds(kind, WARM_STEPS + turn * stretch, stretch))
    print(f"\n{'seconds of a step':<24}{'median':>10}{'lowest to highest':>20}{'target':>16}")
    for kind, values in seconds.items():
        line(f"  {kind}", values)
    print("over a plain step")
    for direction in DIRECTIONS:
        ratios = [kl / plain for kl, plain in zip(seconds[direction], seconds[PLAIN], strict=True)]
        line(f"  {direction}", ratios, "at most 1.45")


if __name__ == "__main__":
    main()

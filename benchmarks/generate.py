"""Tokens/s of what `trivium sample` does, beside `transformers.generate` with the same weights on the CPU.

    python benchmarks/generate.py            about ten minutes
    python benchmarks/generate.py --small    seconds, to see that it works

A model is exported and loaded by transformers as its users do. Both read the same prompts and write as many tokens,
greedily or sampled (temperature 0.8, top_k 50), float32, eager, on one thread; rates count the process's own seconds,
so that others on the machine matter little. What is compared takes turns within a round, in an order that changes
from round to round; shown are medians over the rounds, and of the ratios within a round. Greedy tokens are compared:
where they part, two tokens were as likely but for rounding.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray

from trivium.ask.generate.generate import generate
from trivium.ask.generate.row import Writing
from trivium.ask.generate.sampling import GREEDY, Sampling
from trivium.engine.base import EngineSettings
from trivium.engine.make import make_engine
from trivium.model.spec import ModelSpec

SAMPLED = Sampling(temperature=0.8, top_k=50, seed=1)
WAYS = {"greedy": GREEDY, "sampled": SAMPLED}


@dataclass(frozen=True)
class Shape:
    """So many prompts of one length, and how many tokens are written after each."""

    rows: int
    prompt: int
    written: int


SHAPES = tuple(Shape(rows, prompt, 24) for rows, prompt in ((1, 16), (8, 16), (1, 256), (8, 128)))
SIZES = {
    "6 x 256": ModelSpec(6, 256, 4, 2, 64, 704, 8_192, 512, qk_norm=True),
    "8 x 512": ModelSpec(8, 512, 8, 4, 64, 1_408, 16_384, 512),
}
SMALL_SIZES = {"1 x 64": ModelSpec(1, 64, 2, 1, 32, 128, 256, 64)}
SMALL_SHAPES = (Shape(2, 8, 4),)


class Contenders:
    """One model's weights, in trivium and in transformers."""

    def __init__(self, spec: ModelSpec, folder: Path) -> None:
        self.spec = spec
        self.engine = make_engine(EngineSettings(spec, device="cpu", seed=1))
        self.engine.export(folder)
        model: Any = transformers.AutoModelForCausalLM.from_pretrained(folder)
        self.theirs: Any = model.eval()

    def prompts(self, shape: Shape) -> NDArray[np.int64]:
        """The same for both."""
        return np.random.default_rng(0).integers(0, self.spec.vocab, (shape.rows, shape.prompt))

    def ours(self, shape: Shape, how: Sampling) -> list[list[int]]:
        """What `trivium sample` calls."""
        rows = generate(self.engine, list(self.prompts(shape)), Writing(shape.written, sampling=how))
        return [row.tokens for (row,) in rows]

    def transformers(self, shape: Shape, how: Sampling) -> list[list[int]]:
        """What its users call."""
        prompts = torch.from_numpy(self.prompts(shape))
        sampled = {"do_sample": True, "temperature": how.temperature, "top_k": how.top_k, "top_p": 1.0}
        said: dict[str, Any] = sampled if how.temperature else {"do_sample": False}
        written = self.theirs.generate(
            prompts, attention_mask=torch.ones_like(prompts), max_new_tokens=shape.written, pad_token_id=0, **said
        )
        found: list[list[int]] = written[:, shape.prompt :].tolist()
        return found


def rate(write: Callable[[], list[list[int]]]) -> tuple[float, list[list[int]]]:
    """Tokens a second of this process, prompts included in the time, and the tokens."""
    begin = time.process_time()
    written = write()
    return sum(map(len, written)) / (time.process_time() - begin), written


def measure(contenders: Contenders, shape: Shape, how: Sampling, rounds: int) -> tuple[list[float], list[float], float]:
    """Rates of both in each round, and the share of tokens that are the same."""
    ways = [lambda: contenders.ours(shape, how), lambda: contenders.transformers(shape, how)]
    rates: list[list[float]] = [[], []]
    tokens: list[list[list[int]]] = [[], []]
    for turn in range(rounds):
        for which in (0, 1) if turn % 2 == 0 else (1, 0):
            found, tokens[which] = rate(ways[which])
            rates[which].append(found)
    same = np.mean(np.array(tokens[0]) == np.array(tokens[1]))
    return rates[0], rates[1], float(same)


def line(shape: Shape, way: str, ours: Sequence[float], theirs: Sequence[float], same: float) -> None:
    """A line of the table."""
    ratios = [one / other for one, other in zip(ours, theirs, strict=True)]
    name = f"  {shape.rows:>2} x {shape.prompt:<4} {way}"
    spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
    shown = f"{100 * same:.0f}%" if way == "greedy" else ""
    medians = [statistics.median(each) for each in (ours, theirs, ratios)]
    print(f"{name:<22}{medians[0]:>12,.0f}{medians[1]:>14,.0f}{medians[2]:>9.2f}{spread:>16}{shown:>8}", flush=True)


def main() -> None:
    """Measure in rounds, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=None, help="3, or 1 with --small")
    parser.add_argument("--small", action="store_true", help="a small model, one round")
    options = parser.parse_args()
    rounds = options.rounds or (1 if options.small else 3)
    sizes, shapes = (SMALL_SIZES, SMALL_SHAPES) if options.small else (SIZES, SHAPES)
    torch.set_num_threads(1)
    load = ", ".join(f"{one:.1f}" for one in os.getloadavg())
    print(
        f"torch {torch.__version__}, transformers {transformers.__version__}, one thread; "
        f"{shapes[0].written} tokens written a row; {rounds} rounds; load before: {load}"
    )
    print(f"\n{'rows x prompt, tokens/s':<22}{'trivium':>11}{'transformers':>14}{'ratio':>9}{'rounds':>16}{'same':>8}")
    for name, spec in sizes.items():
        print(f"{name}, {spec.parameters / 1e6:.0f}M parameters, vocabulary {spec.vocab:,}")
        with tempfile.TemporaryDirectory() as folder:
            contenders = Contenders(spec, Path(folder))
        for shape in shapes:
            for way, how in WAYS.items():
                measure(contenders, Shape(shape.rows, shape.prompt, 4), how, 1)
                line(shape, way, *measure(contenders, shape, how, rounds))


if __name__ == "__main__":
    main()

"""What size costs: the plan, its memory, and a batch, from a million documents to a billion.

    python benchmarks/scale.py            about five minutes
    python benchmarks/scale.py --small    half a minute, to see that it works

Sources are simulated: a billion documents are a trillion tokens. Each measurement is a process of its own,
on one core, with compiled kernels loaded before the clock starts. A run is planned over all the
tokens that it reads, then batches are taken at random steps: cold, where windows must be packed first, and
warm, from a stretch of steps whose windows are at hand. Memory is the peak beyond mapped files and beyond
what the process held before the plan. Stages differ from one to the next in row length, packing and mixture.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from fresh import answer, in_fresh_process, mapped_memory, peak_memory, print_line

ROW_SETTINGS = ((2048, "bestfit"), (4096, "bestfit"), (2048, "concat"), (8192, "bestfit"), (2048, "crop"))
STEP_TOKENS = 16_384
WARM_PLACES, WARM_BATCHES = 3, 400
COLD_BATCHES = 60


def stage_tables(names: list[str], stages: int, stage_steps: int) -> list[dict[str, Any]]:
    """Stages that differ from one to the next in row length, packing and mixture; each reads every source."""
    tables = []
    for stage in range(stages):
        seq_len, packing = ROW_SETTINGS[stage % len(ROW_SETTINGS)]
        tables.append(
            {
                "name": f"stage-{stage}",
                "steps": stage_steps,
                "weights": {name: 1 + (7 * number + 3 * stage) % 10 for number, name in enumerate(names)},
                "seq_len": seq_len,
                "packing": packing,
                "batch_size": STEP_TOKENS // seq_len,
            }
        )
    return tables


def timed_plan(prefix: str, documents: int, sources: int, stages: int, stage_steps: int) -> tuple[Any, float, float]:
    """A plan of simulated sources; seconds, and those of them that this process worked."""
    from simulated import make_config, simulated_source

    from trivium.plan.make import make_plan

    names = [f"{prefix}-{number}" for number in range(sources)]
    config = make_config(dict.fromkeys(names, "simulated"), stage_tables(names, stages, stage_steps))
    begin, begin_own = time.perf_counter(), time.process_time()
    plan = make_plan(config, {name: simulated_source(name, documents) for name in names})
    return plan, time.perf_counter() - begin, time.process_time() - begin_own


def held_memory() -> int:
    """The most that this process has held, beyond mapped files."""
    return peak_memory() - mapped_memory()


def load_kernels() -> int:
    """Use every kernel once; gives the memory held so far."""
    from trivium.loader.loader import Loader

    plan, _, _ = timed_plan("kernels", 8_000, 2, len(ROW_SETTINGS) + 1, 100)
    for step in range(0, plan.known_steps, 50):
        Loader(plan, prefetch=0).batch(step)
    return held_memory()


def measure_plan(**size: int) -> dict[str, float]:
    """Plan a run of which no fact is cached."""
    before = load_kernels()
    plan, seconds, own_seconds = timed_plan("source", **size)
    tokens = plan.known_steps * STEP_TOKENS
    return {"tokens": tokens, "plan": seconds, "own": own_seconds, "plan memory": held_memory() - before}


def measure_batches(**size: int) -> dict[str, float]:
    """Plan a run whose facts are cached, and take batches of it."""
    from trivium.loader.loader import Loader

    before = load_kernels()
    plan, seconds, _ = timed_plan("source", **size)
    loader = Loader(plan, prefetch=0)
    cold, touched = cold_batches(loader, plan.known_steps)
    warm = warm_batches(loader, size["stage_steps"], size["stages"], size["sources"])
    return {
        "again": seconds,
        "cold": float(np.median(cold)),
        "touched": float(np.mean(touched)),
        "cold each": float(np.median(cold / touched)),
        "warm": float(np.median(warm)),
        "memory": held_memory() - before,
    }


def cold_batches(loader: Any, steps: int) -> tuple[Any, Any]:
    """Seconds of batches far from one another, and the sources that each touches."""
    seconds, touched = [], []
    for step in np.random.default_rng(0).integers(0, steps, COLD_BATCHES).tolist():
        begin = time.perf_counter()
        batch = loader.batch(step)
        seconds.append(time.perf_counter() - begin)
        touched.append(len(set(batch.source.tolist())))
    return np.array(seconds), np.array(touched)


def warm_batches(loader: Any, stage_steps: int, stages: int, sources: int) -> Any:
    """Seconds of batches at random within a stretch of steps that one window of each source covers, about."""
    random = np.random.default_rng(1)
    seconds = []
    stretch = min(stage_steps, 500 * sources)
    for stage in random.integers(0, stages, WARM_PLACES).tolist():
        first = stage * stage_steps + int(random.integers(0, stage_steps - stretch + 1))
        for step in range(first, first + stretch, max(1, stretch // (100 * sources))):
            loader.batch(step)
        for step in random.integers(first, first + stretch, WARM_BATCHES).tolist():
            begin = time.perf_counter()
            loader.batch(step)
            seconds.append(time.perf_counter() - begin)
    return np.array(seconds)


TASKS: Mapping[str, Callable[..., Any]] = {"plan": measure_plan, "batches": measure_batches}

# Two lines of head, the figure, what it is multiplied by, and the digits shown.
COLUMNS = (
    ("planned", "G tokens", "tokens", 1e-9, 1),
    ("plan", "s", "plan", 1, 2),
    ("of it CPU", "s", "own", 1, 2),
    ("CPU ms", "a G tokens", "own each", 1e12, 0),
    ("peak", "MB", "plan memory", 1e-6, 0),
    ("cached", "ms", "again", 1e3, 0),
    ("warm", "us", "warm", 1e6, 0),
    ("cold", "ms", "cold", 1e3, 2),
    ("sources", "touched", "touched", 1, 1),
    ("cold ms", "a source", "cold each", 1e3, 2),
    ("peak", "MB", "memory", 1e-6, 0),
)


@dataclass(frozen=True, slots=True)
class Size:
    """How much there is to read, and in how many stages."""

    documents: int  # of each source
    sources: int
    stages: int
    stage_steps: int

    @property
    def name(self) -> str:
        """As the table shows it."""
        if self.sources == 1:
            return f"{self.documents:,} documents"
        return f"{self.sources:,} x {self.documents:,}, {self.stages} stages"


def measured(sizes: Sequence[Size], rounds: int, folder: Path) -> list[dict[str, float]]:
    """Plan every size once; then rounds of batches, which find the plan's facts in a cache. Medians of the rounds."""
    caches = [folder / size.name for size in sizes]
    pairs = list(zip(sizes, caches, strict=True))
    plans = [in_fresh_process(__file__, "plan", asdict(size), cache) for size, cache in pairs]
    batches = [
        [in_fresh_process(__file__, "batches", asdict(size), cache) for size, cache in pairs] for _ in range(rounds)
    ]
    for number, plan in enumerate(plans):
        plan["own each"] = plan["own"] / plan["tokens"]
        for key in batches[0][number]:
            plan[key] = statistics.median(taken[number][key] for taken in batches)
    return plans


def print_measured(title: str, sizes: Sequence[Size], found: Sequence[dict[str, float]]) -> None:
    print(
        f"\n{title:<32}" + f"{'a plan of which nothing is cached':^60}" + f"{'a plan from the cache, and batches':^72}"
    )
    for line in range(2):
        print_line("", tuple(str(column[line]) for column in COLUMNS), 12)
    for size, figures in zip(sizes, found, strict=True):
        columns = tuple(f"{figures[key] * factor:,.{digits}f}" for _, _, key, factor, digits in COLUMNS)
        print_line(size.name, columns, 12)


def main() -> None:
    """Measure sizes, then many sources and stages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="no more than a million documents")
    parser.add_argument("--task", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.task:
        answer(options.task, TASKS)
        return
    counts = (10**5, 10**6) if options.small else (10**6, 10**7, 10**8, 10**9)
    sizes = [Size(documents, 1, 1, documents * 1000 // STEP_TOKENS) for documents in counts]
    many = [Size(10**7, 100, 20, 250_000), Size(10**6, 1_000, 3, 1_500_000)]
    if options.small:
        many = [Size(10**4, 20, 6, 100)]
    with tempfile.TemporaryDirectory() as folder:
        found = measured(sizes, 1 if options.small else 3, Path(folder))
        print_measured("one source, read once", sizes, found)
        warm = [figures["warm"] for figures in found]
        print(f"\na warm batch costs {max(warm) / min(warm):.2f} x at the slowest size what it costs at the fastest")
        print_measured("many, with changing stages", many, measured(many, 1, Path(folder)))
    print("\ntargets: a warm batch within 2 x at every size; a cold one 1 ms for each source that it touches;")
    print("300 MB up to 100 sources; a plan no worse than linear")


if __name__ == "__main__":
    main()

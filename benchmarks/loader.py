"""How fast batches come: trivium beside a plain copy of rows, and beside its peers, each in its own tier.

    python benchmarks/loader.py            about seven minutes with all peers installed
    python benchmarks/loader.py --small    one minute, to see that it works

The corpus is written once, to a folder that goes away or to `--folder`. A contender has a process and a core
for itself. There its index is built, every page that it maps is touched, and some batches are thrown away;
then it is timed. Rounds go through all contenders in turn, so that a slow minute hits all of them. Shown are
medians over the rounds, of rates and of ratios within a round: a ratio holds where the times do not.
"""

import argparse
import ctypes
import importlib.metadata
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import first_batch
import numpy as np
from contenders import CONTENDERS, Contender, Tier
from corpus import ROWS, SEQ_LEN, SHARES, STEP_TOKENS, Corpus
from fresh import answer, in_fresh_process, print_line

PAGE_BYTES = 4096
WARM_SECONDS = 0.5
SMALL = {"rounds": 1, "seconds": 0.2, "tokens": 2_000_000, "documents": 10_000, "deep": 10_000}

IN_SEQUENCE, AT_RANDOM, LIMIT = (contender.name for contender in CONTENDERS[:3])
TITLES: dict[Tier, str] = {
    "trivium": "trivium, all fields",
    "limit": "limit: rows of tokens copied, nothing else",
    "bare rows": "peers that give bare rows (target: trivium in sequence at 2 x each)",
    "documents": "peers that give documents (target: trivium in sequence at 20 x the fastest)",
}


def touch_mapped(folder: Path) -> None:
    """Touch every page of the corpus that this process has mapped; the system's tables are Linux's."""
    maps = Path("/proc/self/maps")
    for line in maps.read_text().splitlines() if maps.exists() else ():
        if line.endswith(".ds") and str(folder.resolve()) in line:
            start, stop = (int(address, 16) for address in line.split()[0].split("-"))
            mapped = (ctypes.c_ubyte * (stop - start)).from_address(start)
            np.frombuffer(memoryview(mapped).cast("B"), np.uint8)[::PAGE_BYTES].max()


def rate(batches: Iterator[Any], seconds: float) -> float:
    """Million tokens in a second of this process's time, over so many seconds of it.

    No contender waits for a disk or another process; so on an idle machine this is the clock's time, and on a
    busy one what others take is left out.
    """
    count, begin = 0, time.process_time()
    while (taken := time.process_time() - begin) < seconds:
        for _ in range(4):
            next(batches)
        count += 4
    return count * STEP_TOKENS / taken / 1e6


def measure(name: str, folder: str, tokens_each: int, seconds: float) -> float:
    """The rate of one contender, in this process."""
    corpus = Corpus(Path(folder), tokens_each)
    contender = next(contender for contender in CONTENDERS if contender.name == name)
    batches = contender.batches(corpus)
    shape = tuple(next(batches).shape)
    assert shape == (ROWS, SEQ_LEN), f"{name} gives batches of {shape}"
    touch_mapped(corpus.folder)
    rate(batches, min(seconds, WARM_SECONDS))
    return rate(batches, seconds)


def version(contender: Contender) -> str | None:
    """Of the contender's package; None if it is not installed."""
    try:
        return importlib.metadata.version(contender.package or "numpy")
    except importlib.metadata.PackageNotFoundError:
        return None


def compare(corpus: Corpus, rounds: int, seconds: float) -> None:
    """Measure every contender that is installed, round after round, and print the table."""
    rates: dict[str, list[float]] = {contender.name: [] for contender in CONTENDERS if version(contender)}
    arguments = {"folder": str(corpus.folder), "tokens_each": corpus.tokens_each, "seconds": seconds}
    for _ in range(rounds):
        for name in rates:
            rates[name].append(in_fresh_process(__file__, "measure", arguments | {"name": name}, corpus.cache))
    print_line("", ("M tokens/s", "rounds", "trivium is", "of the copy", "target"), 16)
    for tier, title in TITLES.items():
        print(f"\n{title}")
        for contender in CONTENDERS:
            if contender.tier == tier:
                print_contender(contender, rates)
    documents = [rates[one.name] for one in CONTENDERS if one.tier == "documents" and one.name in rates]
    if documents:
        slowest = min(ratio(rates[IN_SEQUENCE], found) for found in documents)
        print(f"\ntrivium in sequence is {slowest:.1f} x the fastest peer that gives documents (target: 20 x)")


def ratio(rates: Sequence[float], others: Sequence[float]) -> float:
    """Of rates taken in the same rounds."""
    return statistics.median(rate / other for rate, other in zip(rates, others, strict=True))


def print_contender(contender: Contender, rates: dict[str, list[float]]) -> None:
    if contender.name not in rates:
        print(f"{contender.name:<32}not installed: pip install 'trivium[bench]'")
        return
    found = rates[contender.name]
    targets = {IN_SEQUENCE: "0.60 of it", AT_RANDOM: "0.30 of it"}
    columns = (
        f"{statistics.median(found):,.1f}",
        f"{min(found):,.0f} to {max(found):,.0f}",
        "" if contender.tier == "trivium" else f"{ratio(rates[IN_SEQUENCE], found):,.2f} x",
        f"{ratio(found, rates[LIMIT]):.2f}",
        targets.get(contender.name, {"bare rows": "2 x", "documents": "20 x"}.get(contender.tier, "")),
    )
    print_line(contender.name, columns, 16)


def main() -> None:
    """Make the corpus, compare, and measure how long it takes to begin."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="where the corpus is kept; 0.6 GB")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="timed for each contender in each round")
    parser.add_argument("--tokens", type=int, default=100_000_000, help="of each source")
    parser.add_argument("--documents", type=int, default=1_000_000, help="in the files of the second table")
    parser.add_argument("--deep", type=int, default=10_000_000, help="the step deep in a run of the second table")
    parser.add_argument("--small", action="store_true", help="a small corpus, one round, a shorter run")
    parser.add_argument("--task", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.task:
        answer(options.task, {"measure": measure, **first_batch.TASKS})
        return
    if options.small:
        parser.set_defaults(**SMALL)
        options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        corpus = Corpus(folder / f"tokens-{options.tokens}", options.tokens)
        corpus.make()
        print(
            f"{len(SHARES)} sources of {corpus.tokens_each:,} tokens, {corpus.documents():,} documents in all; "
            f"batches of {ROWS} x {SEQ_LEN:,}; one core, no worker"
        )
        print(", ".join(sorted({f"{one.package or 'numpy'} {version(one)}" for one in CONTENDERS if version(one)})))
        print()
        compare(corpus, options.rounds, options.seconds)
        first_batch.compare(__file__, folder, options.documents, options.deep)


if __name__ == "__main__":
    main()

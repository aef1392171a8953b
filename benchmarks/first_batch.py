"""From nothing to a batch: what a plan and a loader cost a process that has just begun, their facts cached.

First on files with a million documents (their tokens are a hole in the file system: only where documents
end is planned with); then on a simulated source, near the start of a run and deep inside it.
"""

import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from corpus import ROWS, SEQ_LEN, SHARES, web_like_lengths
from fresh import in_fresh_process, print_line

DOCUMENT_TOKENS = 668
REPEATS = 15


def make_sparse(folder: Path, documents: int) -> None:
    """Token files of about so many documents, whose tokens take no room."""
    for number, name in enumerate(SHARES):
        path = folder / name / "000.ds"
        tokens = int(documents * DOCUMENT_TOKENS / len(SHARES))
        if not path.exists():
            path.parent.mkdir(parents=True)
            np.cumsum(web_like_lengths(tokens, number)).astype("<u8").tofile(f"{path}.index")
            Path(f"{path}.metadata").write_text(f"zeros|2\n{tokens}\n")
            with open(path, "wb") as file:
                file.truncate(tokens * 2)


def from_files(folder: str, steps: int, step: int) -> dict[str, float]:
    """Times to a batch of files."""
    from simulated import make_config

    stage = {"name": "one", "steps": steps, "mixture": SHARES, "seq_len": SEQ_LEN, "batch_size": ROWS}
    config = make_config({name: Path(folder) / name for name in SHARES}, [stage])
    return times_to_batch(lambda: (config,), step)


def from_simulated(documents: int, steps: int, step: int) -> dict[str, float]:
    """Times to a batch of a simulated source."""
    from simulated import make_config, simulated_source

    stage = {"name": "one", "steps": steps, "mixture": {"web": 1.0}, "seq_len": SEQ_LEN, "batch_size": ROWS}
    config = make_config({"web": "simulated"}, [stage])
    return times_to_batch(lambda: (config, {"web": simulated_source("web", documents)}), step)


def times_to_batch(given: Callable[[], tuple[Any, ...]], step: int) -> dict[str, float]:
    """Milliseconds of a plan, and of a loader and its first batch: the first time, and the usual one.

    The first time includes loading compiled kernels from numba's cache. Every time is a new plan with new
    readings, which have no window at hand.
    """
    from trivium.loader.loader import Loader
    from trivium.plan.make import make_plan

    plans, batches = [], []
    for _ in range(REPEATS + 1):
        arguments = given()
        begin = time.perf_counter()
        plan = make_plan(*arguments)
        planned = time.perf_counter()
        Loader(plan, prefetch=0).batch(step)
        batches.append((time.perf_counter() - planned) * 1000)
        plans.append((planned - begin) * 1000)
    usual = {"plan": statistics.median(plans[1:]), "batch": statistics.median(batches[1:])}
    return {"first plan": plans[0], "first batch": batches[0], **usual}


TASKS: Mapping[str, Callable[..., Any]] = {"from files": from_files, "from simulated": from_simulated}


def compare(script: str, folder: Path, documents: int, deep_step: int) -> None:
    """Print times to the first batch and to one deep in the run."""
    sparse, cache = folder / f"sparse-{documents}", folder / "cache"
    make_sparse(sparse, documents)
    deep_in_files = int(documents * DOCUMENT_TOKENS / ROWS / SEQ_LEN)
    # Runs go on behind the step: a plan has the very last window at hand.
    files = {"folder": str(sparse), "steps": deep_in_files * 11 // 10}
    simulated = {"documents": 10**9, "steps": deep_step * 11 // 10}
    lines: dict[str, tuple[str, dict[str, Any]]] = {
        f"{documents:,} documents, step 0": ("from files", files | {"step": 0}),
        f"... step {deep_in_files:,}": ("from files", files | {"step": deep_in_files}),
        "simulated, step 10": ("from simulated", simulated | {"step": 10}),
        f"... step {deep_step:,}": ("from simulated", simulated | {"step": deep_step}),
    }
    print("\nto a batch, ms, with the plan's facts cached; in brackets with a process's first use of the kernels\n")
    print_line("", ("plan", "", "loader, batch", "", "together", "target"))
    seen: dict[str, float] = {}
    for name, (task, arguments) in lines.items():
        if task not in seen:
            in_fresh_process(script, task, arguments, cache)  # makes the facts, and compiles where that is to do
        times = in_fresh_process(script, task, arguments, cache)
        whole = times["plan"] + times["batch"]
        against = f"{whole / seen[task]:.2f} x" if task in seen else ""
        target = {"from files": "50 ms", "from simulated": "within 2 x" if against else ""}[task]
        first = f"({times['first plan']:,.0f})", f"({times['first batch']:,.0f})"
        columns = f"{times['plan']:.1f}", first[0], f"{times['batch']:.1f}", first[1], f"{whole:.1f} {against}", target
        print_line(name, columns)
        seen.setdefault(task, whole)

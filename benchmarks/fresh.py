"""Work in a process of its own, on one core: nothing that one contender loads or leaves behind slows another."""

import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")
MARK = "result:"


def in_fresh_process(script: str, task: str, arguments: Mapping[str, Any], cache: Path) -> Any:
    """What `answer` gives for a task in a new process of `script`; trivium keeps its facts in `cache`."""
    command = [sys.executable, script, "--task", json.dumps({"task": task, **arguments})]
    environment = os.environ | ONE_THREAD | {"TRIVIUM_CACHE": str(cache)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    for line in done.stdout.splitlines():
        if line.startswith(MARK):
            return json.loads(line.removeprefix(MARK))
    raise RuntimeError(f"{task} {dict(arguments)} gave no result:\n{done.stdout[-2000:]}{done.stderr[-4000:]}")


def answer(request: str, tasks: Mapping[str, Callable[..., Any]]) -> None:
    """In the new process: do the task on one core, and print what it gives."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    arguments = json.loads(request)
    result = tasks[arguments.pop("task")](**arguments)
    print(MARK + json.dumps(result), flush=True)


def peak_memory() -> int:
    """The most bytes that this process has held, mapped files included."""
    status = Path("/proc/self/status")
    if status.exists():  # counts from this program's start, where `getrusage` counts its parent's too
        return _status(status, "VmHWM")
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def mapped_memory() -> int:
    """Of the bytes that this process holds now, those of mapped files, libraries included."""
    status = Path("/proc/self/status")
    return _status(status, "RssFile") if status.exists() else 0


def _status(path: Path, key: str) -> int:
    line = next(line for line in path.read_text().splitlines() if line.startswith(f"{key}:"))
    return int(line.split()[1]) * 1024


def print_line(name: str, columns: tuple[str, ...], width: int = 14) -> None:
    """A line of a table."""
    print(f"{name:<32}" + "".join(f"{column:>{width}}" for column in columns), flush=True)

"""Some steps traced: what runs when on processor and device, and where memory went."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

TRACE, SNAPSHOT = "trace.json.gz", "memory.pickle"  # for perfetto.dev and chrome://tracing; for pytorch.org/memory_viz
MOST_ALLOCATIONS = 100_000  # in a snapshot


@contextmanager
def profiled(folder: Path, device: torch.device) -> Iterator[None]:
    """Inside, everything is traced into a folder; on a GPU with a snapshot of its memory."""
    is_gpu = device.type == "cuda"
    if is_gpu:
        torch.cuda.memory._record_memory_history(max_entries=MOST_ALLOCATIONS)
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if is_gpu else [])]
    try:
        with profile(activities=activities, record_shapes=True) as found:
            yield
        folder.mkdir(parents=True, exist_ok=True)
        found.export_chrome_trace(str(folder / TRACE))
        if is_gpu:
            torch.cuda.memory._dump_snapshot(str(folder / SNAPSHOT))  # type: ignore[no-untyped-call]
    finally:
        if is_gpu:
            torch.cuda.memory._record_memory_history(enabled=None)

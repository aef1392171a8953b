"""The CPU cores that this process may use: those it may run on, and no more than its container pays for."""

import math
import os
from collections.abc import Iterator
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
OWN_CGROUP = Path("/proc/self/cgroup")


def available_cores() -> int:
    """Cores by the affinity mask, or fewer where a container has a quota: 8 cores and a quota of 2.5 -> 3."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = min(_quotas(CGROUPS, OWN_CGROUP), default=math.inf)
    return allowed if quota == math.inf else max(1, min(allowed, math.ceil(quota)))


def _quotas(root: Path, own: Path) -> Iterator[float]:
    """Cores that each control group around this process may use, where it has a limit; both versions of Linux's."""
    try:
        groups = [line.split(":", 2) for line in own.read_text().splitlines()]
    except OSError:
        return
    for _, controllers, path in groups:
        if controllers and "cpu" not in controllers.split(","):
            continue
        top = root / controllers if controllers else root
        folder = top / path.lstrip("/")
        for each in (folder, *folder.parents):
            yield from _quota(each)
            if each == top:
                break


def _quota(folder: Path) -> Iterator[float]:
    """The cores that one control group may use, if it has a limit."""
    try:
        if (folder / "cpu.max").is_file():
            limit, period = (folder / "cpu.max").read_text().split()
        else:
            limit, period = ((folder / f"cpu.cfs_{name}_us").read_text().strip() for name in ("quota", "period"))
        if limit not in ("max", "-1"):
            yield int(limit) / int(period)
    except (OSError, ValueError):  # this group has no limit
        return

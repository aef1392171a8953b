"""Where a launch runs -> plain values for its first event: host, devices, processor, memory, the config's commit.

The commit is read from git's own files: git is not started, since a repository's settings may name commands that it
would run. So nobody knows whether files have changed since that commit.
"""

import os
import re
import socket
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
REFERENCE = re.compile(r"refs/[\w./+@-]+")
MOST_BYTES = 1 << 20  # of a file of git's that is read


def machine_facts(devices: Iterable[tuple[str, str]], config_folder: Path) -> dict[str, Any]:
    """What a launch runs on; `devices` are each rank's host and device."""
    places = list(devices)
    hosts, kinds = (Counter(each) for each in zip(*places, strict=True))
    facts = {
        "host": ", ".join(_counted(hosts, "rank")) if len(hosts) > 1 else next(iter(hosts)),
        "devices": ", ".join(name if count == 1 else f"{count} x {name}" for name, count in kinds.items()),
        "processor": _processor(),
        "machine memory": _memory(),
        "commit": commit_of(config_folder),
    }
    return {name: fact for name, fact in facts.items() if fact is not None}


def _counted(names: Counter[str], what: str) -> list[str]:
    return [f"{name} ({count} {what}{'' if count == 1 else 's'})" for name, count in names.items()]


def this_host() -> str:
    return socket.gethostname()


def _processor() -> str:
    """`AMD EPYC 7763, 2 cores`."""
    name = ""
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(errors="replace"), re.MULTILINE)
        name = "" if found is None else f"{found[1]}, "
    except OSError:
        pass
    cores = os.cpu_count() or 1
    return f"{name}{cores} core{'' if cores == 1 else 's'}"


def _memory() -> str | None:
    try:
        return f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 1e9:.1f} GB"
    except (OSError, ValueError):
        return None


def commit_of(folder: Path) -> str | None:
    """The commit that the repository around a folder is at; None where there is none, or none that can be read."""
    try:
        absolute = folder.resolve()
        around = next((each / ".git" for each in (absolute, *absolute.parents) if (each / ".git").exists()), None)
        return None if around is None else _head(around)
    except (OSError, ValueError):
        return None


def _head(git: Path) -> str | None:
    if git.is_file():  # of a worktree or a submodule: it names the folder
        git = git.parent / _line(git).removeprefix("gitdir:").strip()
    head = _line(git / "HEAD")
    if COMMIT.fullmatch(head):
        return head
    reference = head.removeprefix("ref:").strip()
    if not REFERENCE.fullmatch(reference) or ".." in reference:
        return None
    common = git / _line(git / "commondir") if (git / "commondir").is_file() else git
    for place in (git, common):
        if (place / reference).is_file():
            found = _line(place / reference)
            return found if COMMIT.fullmatch(found) else None
    packed = common / "packed-refs"
    lines = _text(packed).splitlines() if packed.is_file() else []
    named = (line.partition(" ") for line in lines)
    return next((commit for commit, _, name in named if name == reference and COMMIT.fullmatch(commit)), None)


def _line(path: Path) -> str:
    return _text(path).strip()


def _text(path: Path) -> str:
    with open(path, "rb") as file:
        return file.read(MOST_BYTES).decode(errors="replace")

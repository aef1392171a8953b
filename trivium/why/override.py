"""Documents -> what leaves them out of the loss: lines of a config, an override of a command line, and commands."""

import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path

from trivium.config.keys import show_path


def overrides_without(documents: Mapping[str, Iterable[int]], known: Mapping[str, Iterable[int]]) -> list[str]:
    """`sources.web.without=[97, 812]` for each source; `known` are those that its config names already."""
    return [
        f"{show_path(('sources', name, 'without'))}={sorted({*numbers, *known.get(name, ())})}"
        for name, numbers in documents.items()
    ]


def lines_without(documents: Mapping[str, Iterable[int]], known: Mapping[str, Iterable[int]]) -> list[str]:
    """The same as lines of a config: `[sources.web]`, `without = [97, 812]`."""
    return [
        line
        for name, numbers in documents.items()
        for line in (f"[{show_path(('sources', name))}]", f"without = {sorted({*numbers, *known.get(name, ())})}")
    ]


def fork_command(run: Path | str, at: int | None, overrides: Iterable[str]) -> str:
    """The command that goes on from a checkpoint before the step without the documents; a new run where none is."""
    name = f"run.name={Path(run).name}-without"
    if at is None:
        return shlex.join(["trivium", "train", f"{run}/config.toml", name, *overrides])
    return shlex.join(["trivium", "fork", str(run), "--at", str(at), f"{run}/config.toml", name, *overrides])


def rerun_command(run: Path | str, first: int, last: int, documents: Mapping[str, Iterable[int]]) -> str:
    """The command that takes steps again without the documents, and changes nothing."""
    named = [
        part for name, numbers in documents.items() for each in numbers for part in ("--without", f"{name}:{each}")
    ]
    return shlex.join(["trivium", "rerun", str(run), "--from", str(first), "--to", str(last), *named])

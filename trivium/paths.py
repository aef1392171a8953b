"""paths: the paths of a source -> its files, in an order and under names that never change by chance.

A path is a file, a folder (every file in it, however deep), or a pattern such as `web/*/train-*.jsonl`. Costs one
listing of each folder; no file is opened. Links are followed as long as they stay in the folder that was named: one
that leads out of it is refused, and so are pipes and devices.
"""

import difflib
import glob
import itertools
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from trivium.errors import SourceError

NOT_A_FILE = "is a pipe or a device, which would be waited for"
MOST_NAMES = 10_000  # of a folder, among which one that was misspelt is looked for
UNFINISHED = ".prepare"  # a folder in which token files are still being prepared has one of this name


@dataclass(frozen=True, slots=True)
class Found:
    """A file: where it is, and its name within the source, which stays when the source is moved."""

    path: Path
    name: str


def find_any(paths: str | Path | Sequence[str | Path]) -> tuple[Found, ...]:
    """All files of a source, whatever they are, in the same order."""
    return find_with(paths, _expand_any)


def find_with(
    paths: str | Path | Sequence[str | Path], expand: Callable[[str], tuple[Path, list[Found]]]
) -> tuple[Found, ...]:
    entries = [paths] if isinstance(paths, str | Path) else list(paths)
    if not entries:
        raise SourceError("path: is an empty list. Name at least one file or folder.")
    found: dict[str, Found] = {}
    seen: dict[tuple[int, int], Path] = {}
    for entry in entries:
        root, files = expand(str(entry))
        if Path(entry).is_dir() or (glob.has_magic(str(entry)) and not Path(entry).exists()):  # not a file by its name
            _refuse_outside(root, [file.path for file in files])
        for file in _distinct(root, files, found):
            _refuse_twice(file, seen)
            found[file.name] = file
    return tuple(found.values())


def _expand_any(entry: str) -> tuple[Path, list[Found]]:
    """The folder that names are relative to, and the files below it that `entry` names."""
    path = Path(entry)
    if path.is_dir():
        root, files = path, [Path(folder, name) for folder, names in folders_below(path) for name in names]
    elif path.is_file():
        root, files = path.parent, [path]
    elif glob.has_magic(entry):
        matches = [Path(match) for match in sorted(glob.glob(entry, recursive=True))]
        root, files = fixed_part(path), [match for match in matches if match.is_file()]
    else:
        raise missing(entry)
    if not files:
        raise SourceError(f"{entry}: holds no files. Name the file or folder that the text is in.")
    named = [Found(file, file.relative_to(root).as_posix()) for file in files]
    return root, sorted(named, key=lambda file: file.name)


def missing(entry: str) -> SourceError:
    """The error for a path that leads to no file or folder."""
    if Path(entry).exists():
        return SourceError(f"{entry}: {NOT_A_FILE}. Write the path of a file or folder, or a pattern.")
    return SourceError(f"{entry}: does not exist.{suggestion(entry)} Write the path of a file or folder, or a pattern.")


def suggestion(path: str | Path) -> str:
    """` Did you mean data/web.jsonl?`, of names on disk that are much like a path that does not exist; else empty."""
    there = Path(path)
    below: list[str] = []
    while not there.exists() and there != there.parent:
        below.append(there.name)
        there = there.parent
    if not below or not there.is_dir():
        return ""
    try:
        names = [entry.name for entry in itertools.islice(os.scandir(there), MOST_NAMES)]
    except OSError:
        return ""
    close = difflib.get_close_matches(below.pop(), names, 1, 0.7)
    if not close:
        return ""
    whole = (there / close[0]).joinpath(*reversed(below))
    return f" Did you mean {whole if whole.exists() else there / close[0]}?"


def boundary(folder: Path) -> Path:
    """The folder that links may not leave: the one that was named, or the repository of a folder in the Hub's cache."""
    real = folder.resolve()
    for parent in (real, *real.parents):
        if parent.parent.name == "snapshots" and (parent.parents[1] / "blobs").is_dir():
            return parent.parents[1]
    return real


def refuse_link_outside(path: Path, within: Path) -> None:
    """SourceError where a link leads out of the folder that was named."""
    real = path.resolve()
    if not real.is_relative_to(within):
        raise SourceError(
            f"{path}: leads out of {within}, to {real}. "
            f'Take the link out, and name the other place too: path = ["{within}", "{real}"].'
        )


def _refuse_outside(root: Path, files: Sequence[Path]) -> None:
    within = boundary(root)
    for folder in sorted({file.parent for file in files}):
        refuse_link_outside(folder, within)
    for file in files:
        if file.is_symlink() and file.exists():
            refuse_link_outside(file, within)


def folders_below(folder: Path) -> Iterator[tuple[Path, set[str]]]:
    """Folders and the names in them: hidden names skipped, links followed, no folder entered twice."""
    entered = set()
    within = boundary(folder)
    for current, folders, names in os.walk(folder, onerror=refuse_unreadable, followlinks=True):
        here = os.stat(current)
        if (here.st_dev, here.st_ino) in entered:
            folders.clear()
            continue
        entered.add((here.st_dev, here.st_ino))
        if UNFINISHED in folders:
            raise SourceError(
                f"{current}: is not whole: it is being prepared, or that was broken off. "
                f"Wait, or give the same trivium prepare again: it resumes where it was."
            )
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in folders:
            if (Path(current) / name).is_symlink():
                refuse_link_outside(Path(current) / name, within)
        yield Path(current), {name for name in names if not name.startswith(".")}


def refuse_unreadable(error: OSError) -> NoReturn:
    """A folder or link that leads nowhere holds documents that would be missed."""
    what = f"cannot be read: {error.strerror}. Fix it, or take it out of the source."
    raise SourceError(f"{error.filename}: {what}") from error


def fixed_part(pattern: Path) -> Path:
    """The folder before the first part with a wildcard: `data/web/*/a-*.bin` -> `data/web`."""
    fixed: list[str] = []
    for part in pattern.parts[:-1]:
        if glob.has_magic(part):
            break
        fixed.append(part)
    return Path(*fixed)


def _distinct(root: Path, files: Sequence[Found], taken: dict[str, Found]) -> Sequence[Found]:
    """`files` under names not yet taken, by the parents of `root` that this needs.

    ["a/web", "b/web"] with one 0.ds in each -> 0.ds, web/0.ds: adding a path renames no earlier file.
    """
    prefix = ""
    for parent in reversed(Path(os.path.abspath(root)).parts):
        if not any(prefix + file.name in taken for file in files):
            break
        prefix = f"{parent}/{prefix}"
    return [Found(file.path, prefix + file.name) for file in files]


def _refuse_twice(file: Found, seen: dict[tuple[int, int], Path]) -> None:
    """One file under two paths would be read twice an epoch."""
    try:
        status = os.stat(file.path)
    except OSError as error:
        refuse_unreadable(error)
    if not stat.S_ISREG(status.st_mode):
        raise SourceError(f"{file.path}: {NOT_A_FILE}. Take it out of the source.")
    earlier = seen.setdefault((status.st_dev, status.st_ino), file.path)
    if earlier is not file.path:
        raise SourceError(
            f"{file.path}: is found a second time, the first as {earlier}: it would be read twice an epoch. "
            f"Name it once; to read a source more often, write repeat = 2."
        )

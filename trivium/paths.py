"""paths: the paths of a source -> its files, in an order and under names that never change by chance.

A path is a file, a folder (every file in it, however deep), or a pattern such as `web/*/train-*.jsonl`. Costs one
listing of each folder; no file is opened.
"""

import glob
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from trivium.errors import SourceError

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
        raise SourceError(f"{entry}: does not exist. Write the path of a file or folder, or a pattern.")
    if not files:
        raise SourceError(f"{entry}: holds no files. Name the file or folder that the text is in.")
    named = [Found(file, file.relative_to(root).as_posix()) for file in files]
    return root, sorted(named, key=lambda file: file.name)


def folders_below(folder: Path) -> Iterator[tuple[Path, set[str]]]:
    """Folders and the names in them: hidden names skipped, links followed, no folder entered twice."""
    entered = set()
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
    earlier = seen.setdefault((status.st_dev, status.st_ino), file.path)
    if earlier is not file.path:
        raise SourceError(
            f"{file.path}: is found a second time, the first as {earlier}: it would be read twice an epoch. "
            f"Name it once; to read a source more often, write repeat = 2."
        )

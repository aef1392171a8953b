"""Files of a folder, each with its source -> for every source the fewest paths that name its files and no others.

A folder whose files are all of one source is named as a whole; else patterns by ending, such as `data/**/*.md`; else
folder by folder, down to single files. Empty files belong to any source: they hold nothing.
"""

import glob
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from trivium.init.found import FoundFile

MOST_PATTERNS = 24  # of a folder; more endings are named folder by folder
Sources = set[str | None]  # None: a file that no source has


@dataclass(slots=True)
class Folder:
    """A folder, what it holds, and the sources of all files below it: together, and by ending."""

    files: dict[FoundFile, str | None] = field(default_factory=dict)
    folders: dict[str, "Folder"] = field(default_factory=dict)
    sources: Sources = field(default_factory=set)
    endings: dict[str, Sources] = field(default_factory=dict)

    def add(self, file: FoundFile, source: str | None, parts: Sequence[str]) -> None:
        """Put a file into its folder below this one."""
        self.sources.add(source)
        for ending in {file.ending, Path(file.name).suffix or file.ending}:  # `*.gz` is also `a.jsonl.gz`
            self.endings.setdefault(ending, set()).add(source)
        if len(parts) == 1:
            self.files[file] = source
        else:
            self.folders.setdefault(parts[0], Folder()).add(file, source, parts[1:])


def cover(folder: Path, sources: Mapping[FoundFile, str | None]) -> dict[str, tuple[str, ...]]:
    """The paths of every source; `sources` has every file of the folder."""
    top = Folder()
    for file, source in sources.items():
        if file.size:
            top.add(file, source, file.name.split("/"))
    own: dict[str, list[FoundFile]] = {}
    for file, source in sources.items():
        if source is not None and file.size:
            own.setdefault(source, []).append(file)
    return {
        name: (files[0].path.as_posix(),) if len(files) == 1 else tuple(_paths(folder, top, name))
        for name, files in own.items()
    }


def _paths(path: Path, folder: Folder, source: str) -> Iterator[str]:
    if folder.sources == {source}:
        yield path.as_posix()
        return
    inner = [name for name, below in folder.folders.items() if source in below.sources]
    if len(inner) == 1 and source not in folder.files.values():
        yield from _paths(path / inner[0], folder.folders[inner[0]], source)
        return
    own = sorted(ending for ending, found in folder.endings.items() if source in found)
    patterns = [ending for ending in own if not _is_within(ending, own)]
    if len(patterns) <= MOST_PATTERNS and all(folder.endings[ending] == {source} for ending in patterns):
        below = "/**" if inner else ""
        yield from (f"{glob.escape(path.as_posix())}{below}/{_pattern(ending)}" for ending in patterns)
        return
    yield from _here(path, folder, source)
    for name in inner:
        yield from _paths(path / name, folder.folders[name], source)


def _here(path: Path, folder: Folder, source: str) -> Iterator[str]:
    """A source's files in the folder itself: by ending, or singly where another source has files of that ending."""
    by_ending: dict[str, Sources] = {}
    for file, found in folder.files.items():
        by_ending.setdefault(Path(file.name).suffix or file.ending, set()).add(found)
    endings = sorted(ending for ending, found in by_ending.items() if found == {source})
    yield from (f"{glob.escape(path.as_posix())}/{_pattern(ending)}" for ending in endings)
    for file, found in folder.files.items():
        if found == source and (Path(file.name).suffix or file.ending) not in endings:
            yield file.path.as_posix()


def _is_within(ending: str, endings: Sequence[str]) -> bool:
    """Whether files with this ending are matched by the pattern of another one."""
    return any(other != ending and other.startswith(".") and ending.endswith(other) for other in endings)


def _pattern(ending: str) -> str:
    return f"*{glob.escape(ending)}" if ending.startswith(".") else glob.escape(ending)

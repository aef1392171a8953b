"""A folder of runs -> a line for each, as a tree: a fork comes below the run that it was forked from.

Each look costs a few system calls a run, and reads only what was appended: hundreds of runs may be looked at every few
seconds, those that train or are damaged among them.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trivium.errors import ResumeError
from trivium.run.glance import RunGlance
from trivium.run.listing import run_folders


@dataclass(frozen=True, slots=True)
class ListedRun:
    """One line of the list."""

    name: str
    depth: int  # forks of forks are further to the right
    state: str
    why: str  # a failed launch ended
    step: int
    total_steps: int | None
    stage: str
    loss: float | None
    tokens_per_second: float | None
    best_loss: float | None
    best_bits: float | None
    best_step: int | None
    last_time: float | None
    forked: str  # `base at 400`

    def plain(self) -> dict[str, Any]:
        """For the page."""
        return asdict(self)


class Listing:
    """The runs of a folder; each is looked at again whenever it is asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._glances: dict[Path, RunGlance] = {}
        self.look()

    def look(self) -> list[ListedRun]:
        """Every run as it is now, in the order of the tree."""
        paths = run_folders(self.folder)
        self._glances = {path: self._glances.get(path) or RunGlance(path) for path in paths}
        for glance in self._glances.values():
            glance.update()
        parents = {path: self._parent(path) for path in paths}
        return [self._line(path, depth) for path, depth in _in_tree(paths, parents)]

    def path_of(self, name: str) -> Path | None:
        """The folder of a run by its name in the list; None for any other name."""
        return next((path for path in self._glances if path.name == name), None)

    def _parent(self, path: Path) -> Path | None:
        """The run that one was forked from, where that is in the list."""
        lineage = _lineage(self._glances[path])
        # The path of a lineage is from a folder that is not known any more: runs are beside one another.
        parent = None if lineage is None else path.with_name(Path(str(lineage["run"])).name)
        return parent if parent in self._glances and parent != path else None

    def _line(self, path: Path, depth: int) -> ListedRun:
        glance = self._glances[path]
        lineage, last, best = _lineage(glance), glance.last, glance.best
        return ListedRun(
            name=path.name,
            depth=depth,
            state=glance.state,
            why=glance.why,
            step=glance.step,
            total_steps=glance.total_steps,
            stage=glance.stage,
            loss=None if last is None else last.loss,
            tokens_per_second=None if last is None else last.tokens_per_second,
            best_loss=None if best is None else best.loss,
            best_bits=None if best is None else best.bits_per_byte,
            best_step=None if best is None else best.step,
            last_time=glance.last_time,
            forked="" if lineage is None else f"{lineage['run']} at {lineage['step']:,}",
        )


def _lineage(glance: RunGlance) -> dict[str, Any] | None:
    try:
        return glance.folder.lineage
    except ResumeError:  # one run's damage hides nothing
        return None


def _in_tree(paths: list[Path], parents: dict[Path, Path | None]) -> Iterator[tuple[Path, int]]:
    """Every path once, below its parent, with its depth; a circle of lineages is cut where it closes."""
    children: dict[Path | None, list[Path]] = {}
    for path in paths:
        children.setdefault(parents[path], []).append(path)
    seen: set[Path] = set()
    for root in (*children.get(None, []), *paths):
        waiting = [(root, 0)]
        while waiting:
            path, depth = waiting.pop()
            if path not in seen:
                seen.add(path)
                yield path, depth
                waiting += [(child, depth + 1) for child in reversed(children.get(path, []))]

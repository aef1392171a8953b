"""Runs on disk -> what a page that follows them shows now: one run, or all of a folder and those chosen of them."""

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from trivium.errors import UsageError
from trivium.report.listing import ListedRun, Listing
from trivium.report.page import page_data
from trivium.report.read import RunFiles
from trivium.report.run import shown_runs
from trivium.run.listing import is_run

MOST_CHOSEN = 8  # runs in one chart: there are that many colours
MOST_OPEN = 16  # runs whose steps are held
MOST_PAGES = 4  # kept for those who ask for the same again


class Page(NamedTuple):
    """What a page shows, and a mark that changes with it."""

    mark: str
    data: dict[str, Any]


class Followed:
    """Reads what is new whenever it is asked."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._listing = Listing(folder) if folder.is_dir() and not is_run(folder) else None
        self._opened: OrderedDict[Path, RunFiles] = OrderedDict()
        self._pages: OrderedDict[tuple[str, ...], Page] = OrderedDict()
        if self._listing is None:
            self._open(folder)
        elif not self._listing.look():
            raise UsageError(f"{folder}: has no runs. Give a run's folder, or the one that run.folder names.")

    def now(self, chosen: Sequence[str] = ()) -> Page:
        """The page of the runs chosen by name; where one run is followed that one's."""
        if self._listing is None:
            return self._made((), (), [self._open(self.folder)], None, [])
        listed = self._listing.look()
        opened, problems = [], []
        names = tuple(dict.fromkeys(chosen))[:MOST_CHOSEN]
        for name in names:
            path = self._listing.path_of(name)
            try:
                if path is None:
                    raise UsageError(f"{name}: is not a run of {self.folder}.")
                opened.append(self._open(path))
            except (UsageError, OSError) as error:  # half written, or damaged: the others are shown
                problems.append(str(error))
        return self._made(names, (tuple(listed), tuple(problems)), opened, listed, problems)

    def _open(self, path: Path) -> RunFiles:
        """The files of a run, read as far as they are written; those asked for long ago are closed."""
        files = self._opened.pop(path, None)
        if files is None:
            files = RunFiles(path)
        elif files.mark() != files.read_mark:
            files.update()
        self._opened[path] = files
        while len(self._opened) > MOST_OPEN:
            self._opened.popitem(last=False)
        return files

    def _made(
        self,
        names: tuple[str, ...],
        state: Hashable,
        files: list[RunFiles],
        listed: list[ListedRun] | None,
        problems: list[str],
    ) -> Page:
        mark = f'"{abs(hash((state, tuple(each.read_mark for each in files)))):x}"'
        known = self._pages.pop(names, None)
        if known is None or known.mark != mark:
            data = page_data(shown_runs(files))
            if listed is not None:
                data["listing"] = {
                    "folder": str(self.folder),
                    "runs": [each.plain() for each in listed],
                    "chosen": [name for name in names if any(each.name == name for each in listed)],
                    "most": MOST_CHOSEN,
                    "problems": problems,
                }
                data["title"] = str(self.folder)
            known = Page(mark, data)
        self._pages[names] = known
        while len(self._pages) > MOST_PAGES:
            self._pages.popitem(last=False)
        return known

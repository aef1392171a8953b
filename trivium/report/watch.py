"""The page of runs while they train: a server for this machine alone, with two answers and no files.

`/` is the page, `/data.json` what it shows, each with the names of the runs that are chosen: `?run=a&run=b`. A name is
looked up in the list of runs and never becomes a path. Nothing else of a request is looked at but its Host, so that no
other site's name can be pointed here.
"""

import threading
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import parse_qsl

from trivium.errors import UsageError
from trivium.local_page import LocalAnswers, LocalServer
from trivium.report.follow import MOST_CHOSEN, Followed, Page
from trivium.report.page import page_html, script_safe

POLL_SECONDS = 3.0


class RunServer(LocalServer):
    """Serves the page of one run, or of all runs of a folder."""

    def __init__(self, folder: Path, port: int, poll_seconds: float = POLL_SECONDS) -> None:
        self.poll_seconds = poll_seconds
        self._followed = Followed(folder)
        self._lock = threading.Lock()
        super().__init__("watch", port, _Answers)

    def now(self, chosen: Sequence[str]) -> Page:
        """What the page shows now, and a mark that changes with it."""
        with self._lock:
            return self._followed.now(chosen)


def chosen_runs(query: str) -> list[str] | None:
    """The names that a request chooses; None where it asks for anything else."""
    try:
        asked = parse_qsl(query, strict_parsing=bool(query), max_num_fields=MOST_CHOSEN)
    except ValueError:
        return None
    return [name for _, name in asked] if all(key == "run" for key, _ in asked) else None


class _Answers(LocalAnswers):
    server: RunServer

    def do_GET(self) -> None:  # noqa: N802
        if not self.is_for_us:
            self.answer(403, "text/plain", f"ask for {self.server.url}\n")
            return
        path, _, query = self.path.partition("?")
        chosen = chosen_runs(query)
        if path not in ("/", "/data.json") or chosen is None:
            self.answer(404, "text/plain", "only / and /data.json are served\n")
            return
        try:
            mark, data = self.server.now(chosen)
        except (UsageError, OSError) as error:  # its files are moved, or half written: the next request may find them
            self.answer(503, "text/plain", f"{error}\n")
            return
        if path == "/":
            self.answer(200, "text/html", page_html(data, poll_seconds=self.server.poll_seconds))
        elif self.headers.get("If-None-Match") == mark:
            self.answer(304, "application/json", "", mark)
        else:
            self.answer(200, "application/json", script_safe(data), mark)

"""The page of runs while they train: a server for this machine alone, with two answers and no files.

`/` is the page, `/data.json` what it shows, each with the names of the runs that are chosen: `?run=a&run=b`. A name is
looked up in the list of runs and never becomes a path. Nothing else of a request is looked at but its Host, so that no
other site's name can be pointed here.
"""

import sys
import threading
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from trivium.errors import UsageError
from trivium.report.follow import MOST_CHOSEN, Followed, Page
from trivium.report.page import page_html, script_safe

POLL_SECONDS = 3.0
ADDRESS = "127.0.0.1"


class RunServer(ThreadingHTTPServer):
    """Serves the page of one run, or of all runs of a folder."""

    daemon_threads = True

    def __init__(self, folder: Path, port: int, poll_seconds: float = POLL_SECONDS) -> None:
        self.poll_seconds = poll_seconds
        self._followed = Followed(folder)
        self._lock = threading.Lock()
        try:
            super().__init__((ADDRESS, port), _Answers)
        except OSError as error:
            what = f"watch: port {port} cannot be opened: {error.strerror}. Give another: --port {port + 1}."
            raise UsageError(what) from None

    @property
    def url(self) -> str:
        return f"http://{ADDRESS}:{self.server_port}/"

    @property
    def hosts(self) -> tuple[str, ...]:
        """The Host names that it answers to."""
        return tuple(f"{name}:{self.server_port}" for name in (ADDRESS, "localhost"))

    def now(self, chosen: Sequence[str]) -> Page:
        """What the page shows now, and a mark that changes with it."""
        with self._lock:
            return self._followed.now(chosen)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a browser that went away; show a traceback of anything else."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


def chosen_runs(query: str) -> list[str] | None:
    """The names that a request chooses; None where it asks for anything else."""
    try:
        asked = parse_qsl(query, strict_parsing=bool(query), max_num_fields=MOST_CHOSEN)
    except ValueError:
        return None
    return [name for _, name in asked] if all(key == "run" for key, _ in asked) else None


class _Answers(BaseHTTPRequestHandler):
    server: RunServer
    server_version = "trivium"
    sys_version = ""

    def do_GET(self) -> None:
        if self.headers.get("Host") not in self.server.hosts:
            self._answer(403, "text/plain", f"ask for {self.server.url}\n")
            return
        path, _, query = self.path.partition("?")
        chosen = chosen_runs(query)
        if path not in ("/", "/data.json") or chosen is None:
            self._answer(404, "text/plain", "only / and /data.json are served\n")
            return
        try:
            mark, data = self.server.now(chosen)
        except (UsageError, OSError) as error:  # its files are moved, or half written: the next request may find them
            self._answer(503, "text/plain", f"{error}\n")
            return
        if path == "/":
            self._answer(200, "text/html", page_html(data, poll_seconds=self.server.poll_seconds))
        elif self.headers.get("If-None-Match") == mark:
            self._answer(304, "application/json", "", mark)
        else:
            self._answer(200, "application/json", script_safe(data), mark)

    def _answer(self, code: int, kind: str, text: str, mark: str | None = None) -> None:
        body = text.encode()
        self.send_response(code)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("X-Frame-Options", "DENY")
        if mark is not None:
            self.send_header("ETag", mark)
        self.end_headers()
        if code != 304:
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Log no requests: the terminal is for people."""

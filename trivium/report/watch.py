"""The page of a run while it trains: a server for this machine alone, with two answers and no files.

`/` is the page, `/data.json` what it shows; nothing else of a request is looked at but its Host, so that no other
site's name can be pointed here.
"""

import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from trivium.errors import UsageError
from trivium.report.page import page_data, page_html, script_safe
from trivium.report.read import RunFiles
from trivium.report.run import shown_runs

POLL_SECONDS = 3.0
ADDRESS = "127.0.0.1"


class RunServer(ThreadingHTTPServer):
    """Serves one run's page."""

    daemon_threads = True

    def __init__(self, folder: Path, port: int, poll_seconds: float = POLL_SECONDS) -> None:
        self.poll_seconds = poll_seconds
        self._files = RunFiles(folder)
        self._lock = threading.Lock()
        self._mark = self._files.mark()
        self._data = self._read()
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

    def _read(self) -> dict[str, Any]:
        return page_data(shown_runs([self._files]))

    def news(self) -> tuple[str, dict[str, Any]]:
        """What the page shows now, and a mark that changes with it."""
        with self._lock:
            mark = self._files.mark()
            if mark != self._mark:
                self._files.update()
                self._mark, self._data = mark, self._read()
            return f'"{abs(hash(mark)):x}"', self._data

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a browser that went away; show a traceback of anything else."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Answers(BaseHTTPRequestHandler):
    server: RunServer
    server_version = "trivium"
    sys_version = ""

    def do_GET(self) -> None:
        if self.headers.get("Host") not in self.server.hosts:
            self._answer(403, "text/plain", f"ask for {self.server.url}\n")
            return
        try:
            mark, data = self.server.news()
        except (UsageError, OSError) as error:  # its files are moved, or half written: the next request may find them
            self._answer(503, "text/plain", f"{error}\n")
            return
        if self.path == "/":
            self._answer(200, "text/html", page_html(data, poll_seconds=self.server.poll_seconds))
        elif self.path != "/data.json":
            self._answer(404, "text/plain", "only / and /data.json are served\n")
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

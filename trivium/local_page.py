"""A page for this machine alone: a server on 127.0.0.1 that answers only requests that name it as their Host.

So no other machine reaches it, and no other site's name can be pointed at it. Answers are never kept by a browser, and
never shown within another page.
"""

import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from trivium.errors import UsageError

ADDRESS = "127.0.0.1"
SECONDS = 30.0  # that a request may take to arrive


class LocalServer(ThreadingHTTPServer):
    """Listens on one port; `command` is who asks for it, for the message where the port is taken."""

    daemon_threads = True

    def __init__(self, command: str, port: int, answers: type["LocalAnswers"]) -> None:
        try:
            super().__init__((ADDRESS, port), answers)
        except OSError as error:
            what = f"{command}: port {port} cannot be opened: {error.strerror}. Give another: --port {port + 1}."
            raise UsageError(what) from None

    @property
    def url(self) -> str:
        return f"http://{ADDRESS}:{self.server_port}/"

    @property
    def hosts(self) -> tuple[str, ...]:
        """The Host names that it answers to."""
        return tuple(f"{name}:{self.server_port}" for name in (ADDRESS, "localhost"))

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a browser that went away, or was too slow; show a traceback of anything else."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


class LocalAnswers(BaseHTTPRequestHandler):
    """What the answers to requests have in common."""

    server: LocalServer
    server_version = "trivium"
    sys_version = ""
    timeout = SECONDS

    @property
    def is_for_us(self) -> bool:
        """Whether a request names this server as its Host."""
        return self.headers.get("Host") in self.server.hosts

    def answer(self, code: int, kind: str, text: str, mark: str | None = None) -> None:
        """A whole answer; `mark` tells it from others at the same address."""
        body = text.encode()
        self.begin(code, kind, len(body), mark)
        if code != 304:
            self.wfile.write(body)

    def begin(self, code: int, kind: str, length: int | None = None, mark: str | None = None) -> None:
        """The head of an answer; one without a length ends with the connection."""
        self.send_response(code)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("X-Frame-Options", "DENY")
        if length is None:
            self.send_header("Connection", "close")
        else:
            self.send_header("Content-Length", str(length))
        if mark is not None:
            self.send_header("ETag", mark)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Log no requests: the terminal is for people."""

"""Datasets on disk and behind a server that fails when it is told to."""

import hashlib
import json
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np

from tests.support.corpus import make_config, write_source
from trivium.config.schema import Config
from trivium.config.sources import StreamSource
from trivium.rows.batch import Batch
from trivium.sources.stream.dataset import StreamDataset
from trivium.sources.stream.prefetch import Retries
from trivium.text.tokenizer import ByteTokenizer

BATCH_FIELDS = ("tokens", "targets", "segments", "positions", "source")
STREAM_STAGES: list[dict[str, object]] = [
    {"steps": 7, "seq_len": 32, "batch_size": 6, "mixture": {"web": 0.5, "code": 0.5}},
    {"steps": 6, "seq_len": 48, "batch_size": 6, "mixture": {"web": 0.75, "code": 0.25}, "packing": "concat"},
    {"steps": 3, "seq_len": 48, "batch_size": 6, "mixture": {"code": 1.0}},
    {"steps": 8, "seq_len": 32, "batch_size": 12, "mixture": {"web": 0.9, "code": 0.1}, "seed": 3},
]


def text_of(file: int, example: int, length: int) -> str:
    """A text that says which one it is: `2.17:abcabc`, of this length at least."""
    name = f"{file}.{example}:"
    return name + "abc"[: max(0, length - len(name))] + "x" * max(0, length - len(name) - 3)


def write_jsonl(folder: Path, files: Sequence[Sequence[int]]) -> Path:
    """A folder of JSONL files; a length of 0 is an empty text."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, lengths in enumerate(files):
        texts = [text_of(number, example, length) if length else "" for example, length in enumerate(lengths)]
        (folder / f"{number:03d}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return folder


def make_stream(dataset: Path | str, retries: Retries | None = None, **settings: Any) -> StreamDataset:
    """A stream of bytes, called web."""
    source = StreamSource.model_validate({"kind": "stream", "dataset": str(dataset), **settings})
    return StreamDataset("web", source, ByteTokenizer(), retries)


class Server(ThreadingHTTPServer):
    """Serves one body with ranges; the nth request for a part of it may fail."""

    daemon_threads = True

    def __init__(self, body: bytes) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.body = body
        self.faults: dict[int, str] = {}  # by the number of the request: "500", "break" or "stall"
        self.requests = 0
        self.paths: set[str] = set()  # that were asked for, with their queries
        self.status = 200  # of every answer, where it is another
        self.gone: tuple[int, int] | None = None  # from which request for a part on it answers with which status

    @property
    def url(self) -> str:
        """Where the body is."""
        return f"http://127.0.0.1:{self.server_address[1]}/data.jsonl"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hung up is not an error."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def log_message(self, *args: Any) -> None:
        """Quiet."""

    def do_HEAD(self) -> None:
        if self.server.status != 200:
            self._head(self.server.status, 0)
            return
        self._head(200, len(self.server.body))

    def do_GET(self) -> None:
        self.server.paths.add(self.path)
        wanted, body = self.headers.get("Range"), self.server.body
        if self.server.status != 200:
            self._head(self.server.status, 0)
            return
        if wanted is None:
            self._head(200, len(body))
            self.wfile.write(body)
            return
        if self.server.gone is not None and self.server.requests >= self.server.gone[0]:
            self._head(self.server.gone[1], 0)
            return
        fault = self.server.faults.get(self.server.requests)
        self.server.requests += 1
        first, last = (int(end) for end in wanted.removeprefix("bytes=").split("-"))
        part = body[first : last + 1]
        if fault == "500":
            self._head(500, 0)
            return
        if fault == "stall":
            time.sleep(3)
        self._head(206, len(part), f"bytes {first}-{first + len(part) - 1}/{len(body)}")
        self.wfile.write(part[: len(part) // 2] if fault == "break" else part)
        if fault == "break":
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True

    def _head(self, status: int, length: int, content_range: str | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(length))
        self.send_header("Accept-Ranges", "bytes")
        if content_range is not None:
            self.send_header("Content-Range", content_range)
        self.end_headers()


@contextmanager
def serving(body: bytes) -> Iterator[Server]:
    """A server in a thread."""
    server = Server(body)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def stream_config(
    folder: Path,
    stages: list[dict[str, object]] | None = None,
    evaluate: dict[str, object] | None = None,
    **settings: Any,
) -> Config:
    """A stream and token files mixed in four stages, both written the first time."""
    rng = np.random.default_rng(0)
    if not (folder / "web").exists():
        write_jsonl(folder / "web", [rng.integers(6, 60, 30).tolist() for _ in range(3)])
        write_source(folder / "code", [rng.integers(1, 60, 40).tolist()], "uint16")
    sources = {
        "web": {"kind": "stream", "dataset": str(folder / "web"), "lanes": 4, "shuffle_buffer": 8, **settings},
        "code": {"kind": "tokens", "path": str(folder / "code")},
    }
    return make_config(
        sources,
        STREAM_STAGES if stages is None else stages,
        tokenizer={"kind": "bytes"},
        model={"size": "tiny", "vocab": 4096},
        evaluate=evaluate or {},
    )


def batch_hash(batch: Batch) -> str:
    """A hash of all arrays of a batch."""
    return hashlib.blake2b(b"".join(getattr(batch, field).tobytes() for field in BATCH_FIELDS)).hexdigest()

"""A Hub on this machine: takes new repositories and commits as the real one does, over HTTP, and keeps their files."""

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKEN = "hf_right"
LARGE = (".safetensors", ".gguf")  # what the Hub keeps apart, by its hash


class Hub(ThreadingHTTPServer):
    """Files by repository and name; `down` answers everything with 503."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.files: dict[str, dict[str, bytes]] = {}
        self.private: set[str] = set()
        self.objects: dict[str, bytes] = {}
        self.messages: list[str] = []
        self.down = False

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Answer(BaseHTTPRequestHandler):
    server: Hub

    def log_message(self, *arguments: Any) -> None:
        """Nothing is printed."""

    def do_PUT(self) -> None:
        """The bytes of a large file."""
        content = self._body()
        assert sha256(content).hexdigest() == self.path.rpartition("/")[2]
        self.server.objects[self.path.rpartition("/")[2]] = content
        self._reply({})

    def do_POST(self) -> None:
        body = self._body()
        if self.server.down:
            return self._reply({"error": "down for maintenance"}, 503)
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self._reply({"error": "Invalid credentials in Authorization header"}, 401)
        path = self.path.partition("?")[0]
        if path == "/api/repos/create":
            return self._create(json.loads(body))
        if path == "/api/validate-yaml":
            return self._reply({"errors": [], "warnings": []})
        if path.endswith("/info/lfs/objects/batch"):
            return self._batch(json.loads(body))
        repository = "/".join(path.split("/")[3:5])
        if "/preupload/" in path:
            return self._sort(json.loads(body))
        assert "/commit/" in path, path
        return self._commit(repository, body)

    def do_GET(self) -> None:
        self._reply({"error": "not found"}, 404)

    def _create(self, asked: dict[str, Any]) -> None:
        name = f"{asked.get('organization') or 'me'}/{asked['name']}"
        if name in self.server.files:
            return self._reply({"error": "exists", "url": f"{self.server.address}/{name}"}, 409)
        self.server.files[name] = {}
        if asked.get("private") or asked.get("visibility") == "private":
            self.server.private.add(name)
        return self._reply({"url": f"{self.server.address}/{name}"})

    def _sort(self, asked: dict[str, Any]) -> None:
        files = [
            {
                "path": file["path"],
                "uploadMode": "lfs" if file["path"].endswith(LARGE) else "regular",
                "shouldIgnore": False,
            }
            for file in asked["files"]
        ]
        self._reply({"files": files})

    def _batch(self, asked: dict[str, Any]) -> None:
        objects = [
            {**each, "actions": {"upload": {"href": f"{self.server.address}/objects/{each['oid']}"}}}
            for each in asked["objects"]
        ]
        self._reply({"transfer": "basic", "objects": objects})

    def _commit(self, repository: str, body: bytes) -> None:
        for line in map(json.loads, body.splitlines()):
            value = line["value"]
            if line["key"] == "header":
                self.server.messages.append(value["summary"])
            elif line["key"] == "file":
                self.server.files[repository][value["path"]] = base64.b64decode(value["content"])
            else:
                self.server.files[repository][value["path"]] = self.server.objects[value["oid"]]
        address = f"{self.server.address}/{repository}"
        self._reply({"success": True, "commitOid": "0" * 40, "commitUrl": f"{address}/commit/{'0' * 40}"})

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            return b"".join(iter(self._chunk, b""))
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _chunk(self) -> bytes:
        content = self.rfile.read(int(self.rfile.readline(), 16))
        self.rfile.readline()
        return content

    def _reply(self, value: Any, status: int = 200) -> None:
        content = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


@contextmanager
def running_hub() -> Iterator[Hub]:
    """A Hub while the block runs."""
    hub = Hub()
    thread = threading.Thread(target=hub.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.shutdown()
        hub.server_close()
        thread.join()

"""Events -> lines of a run's events.jsonl: one line an event, flushed as it is written, by any thread."""

import json
import os
import threading
import time
from contextlib import suppress
from dataclasses import asdict
from io import FileIO
from pathlib import Path

from trivium.run.events import Event


class EventFile:
    """The run's events.jsonl, open for appending by any thread; lines that find no room on the disk wait for it.

    Where the file is deleted or moved under a run, a new one gets all that it held.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = self._open()
        self._lock = threading.Lock()  # the loop writes, and so do the threads that save and copy
        self._waiting = b""
        if self._file.tell() and not _ends_a_line(path):
            self._put(b"\n")

    def _open(self) -> FileIO:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        return open(self._path, "a+b", buffering=0)

    def write(self, event: Event) -> None:
        line = {"event": event.kind, "time": round(time.time(), 3), **asdict(event)}
        self._put(json.dumps(line).encode() + b"\n")

    def _put(self, more: bytes) -> None:
        with self._lock:
            if self._file.closed:
                return  # a launch that fails does not wait for what its threads still have to say
            self._waiting += more
            try:
                self._follow_path()
                while self._waiting:
                    self._waiting = self._waiting[self._file.write(self._waiting) :]
            except OSError:
                pass  # a full disk ends no run; the next event tries again

    def _follow_path(self) -> None:
        """Where the open file no longer has its name, write what it holds to a new one."""
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(self._file.fileno()), os.stat(self._path)):
                return
        new = self._open()
        if new.tell() == 0:
            self._file.seek(0)
            self._waiting = self._file.read() + self._waiting
        self._file.close()
        self._file = new

    def close(self) -> None:
        """Flush to the disk."""
        self._put(b"")
        os.fsync(self._file.fileno())
        self._file.close()


def _ends_a_line(path: Path) -> bool:
    with open(path, "rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"

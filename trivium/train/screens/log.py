"""What a launch says -> log.txt in the run's folder, with times: events as lines, warnings, what libraries log.

Rank 0 writes it; a resume appends. Past `MOST_BYTES` the file becomes log.1.txt, in place of the one before, and a new
one is begun: a run's log never takes more than twice that. Credentials in addresses are left out.
"""

import io
import logging
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from trivium.config.redact import redact
from trivium.errors import TriviumError
from trivium.plan.show import show_plan
from trivium.run.events import Event, Failed, Started, StepTaken
from trivium.screen import Detail, detail, echo_line, printable, terminal
from trivium.train.screens.lines import Worded
from trivium.train.screens.standing import Launch

LOG, OLD_LOG = "log.txt", "log.1.txt"
MOST_BYTES = 16 << 20
PLAN_COLUMNS = 120


class LogFile:
    """Appends texts, each line with the time in UTC; one that finds no room on the disk is lost, and ends no run."""

    def __init__(self, folder: Path) -> None:
        self._path, self._old = folder / LOG, folder / OLD_LOG
        self._lock = threading.Lock()  # the loop writes, and so do threads that save

    def write(self, text: str) -> None:
        """Append a text of one or more lines."""
        now = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime())
        lines = "".join(f"{now}  {line}".rstrip() + "\n" for line in printable(redact(text)).splitlines())
        with self._lock:
            try:
                if self._path.is_file() and self._path.stat().st_size + len(lines) > MOST_BYTES:
                    self._path.replace(self._old)
                with open(self._path, "a", encoding="utf-8", errors="replace") as file:
                    file.write(lines)
            except OSError:
                pass


class RunLog:
    """A sink of events that also keeps what libraries log and warn of, until it is closed."""

    def __init__(self, launch: Launch, every: int) -> None:
        self._launch, self._every = launch, every
        self._words = Worded(launch)
        self._file = LogFile(launch.folder)
        self._level = logging.getLogger().level
        self._handlers = _add_handlers(self._file)
        self._warns: Callable[..., Any] = warnings.showwarning
        self._shows = self._keep_warning
        warnings.showwarning = self._shows

    def write(self, event: Event) -> None:
        line = self._words.line(event)
        if isinstance(event, Started):
            self._file.write(self._plan_words())
        if not isinstance(event, StepTaken) or event.step % self._every == 0:
            self._file.write(line)
        if isinstance(event, Failed) and not isinstance(sys.exception(), TriviumError):
            self._file.write(traceback.format_exc())

    def _plan_words(self) -> str:
        shown = io.StringIO()
        show_plan(self._launch.plan(), terminal(file=shown, width=PLAN_COLUMNS), self._launch.loaded)
        return shown.getvalue()

    def _keep_warning(
        self,
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        self._file.write(f"{category.__name__}: {message} ({filename}:{lineno})")
        self._warns(message, category, filename, lineno, file, line)

    def close(self) -> None:
        """Keep nothing more."""
        for handler in self._handlers:
            logging.getLogger().removeHandler(handler)
        logging.getLogger().setLevel(self._level)
        if warnings.showwarning is self._shows:
            warnings.showwarning = self._warns


class _Kept(logging.Handler):
    """Writes log records into the run's log."""

    def __init__(self, file: LogFile) -> None:
        super().__init__()
        self._file = file

    def emit(self, record: logging.LogRecord) -> None:
        self._file.write(f"{record.levelname} {record.name}: {record.getMessage()}")


class _Printed(logging.Handler):
    """Prints log records, as Python does by itself where nobody else takes them."""

    def emit(self, record: logging.LogRecord) -> None:
        echo_line(record.getMessage(), err=True)


def _add_handlers(file: LogFile) -> list[logging.Handler]:
    """Log records go to the file; where nobody else takes them, they are printed too, unless the launch is quiet."""
    root = logging.getLogger()
    printed = [_Printed()] if not root.handlers and detail() is not Detail.QUIET else []
    found = [_Kept(file), *printed]
    for handler in found:
        root.addHandler(handler)
    if detail() is Detail.VERBOSE:
        root.setLevel(min(root.level, logging.INFO))
    return found

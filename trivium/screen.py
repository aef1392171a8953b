"""What reaches a terminal: every text without control characters, and nothing in a name or document is markup.

Documents, file names and names in configs may hold escape sequences, which move the cursor, rename the window or write
over what was printed before. All output goes through here; they are shown as `\\u001b`.

What takes long says so (`under_way`): in the live view of a run, else on standard error as a bar in a terminal, and
as a line in a pipe.
"""

import io
import os
import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from enum import IntEnum
from html import escape
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

LINE_END = re.compile("\n(?! )")  # but for those of a message's further lines, which are indented
# All of C0 and C1 but tab and line end, and the marks that turn the direction of writing around.
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    """The text with each control character as an escape, which JSON understands too."""
    return CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def one_line(text: str) -> str:
    """A text of one line, or a message: a line end that a file name brought into it is an escape too."""
    return LINE_END.sub(r"\\u000a", printable(text))


def echo_line(text: object, *, err: bool = False) -> None:
    """Print a message, at once."""
    echo(one_line(str(text)), err=err)


def echo(text: object = "", *, err: bool = False, end: str = "\n") -> None:
    """Print a text, at once."""
    stream = sys.stderr if err else sys.stdout
    stream.write(printable(str(text)) + end)
    stream.flush()


def terminal(*, stderr: bool = False, file: IO[str] | None = None, width: int | None = None) -> "Console":
    """Where tables and bars are printed; rich is imported only by commands that print some."""
    from rich.console import Console
    from rich.segment import Segment
    from rich.text import Text

    class PlainConsole(Console):
        """A console that shows texts as they are: no markup, no emoji, no control characters."""

        def render_str(self, text: str, **settings: Any) -> Text:
            return super().render_str(printable(text), **settings)  # before its width is measured

        def render(self, renderable: Any, options: Any = None) -> Iterable[Segment]:
            if isinstance(renderable, Text) and CONTROL.search(renderable.plain):
                renderable = renderable.blank_copy(printable(renderable.plain))  # before it is wrapped
            for segment in super().render(renderable, options):
                yield segment if segment.control else Segment(printable(segment.text), segment.style)

    return PlainConsole(stderr=stderr, file=file, width=width, markup=False, emoji=False)


def as_html(show: Callable[["Console"], None], columns: int = 100) -> str:
    """What is printed on a console, for a notebook: text, whatever names contain."""
    shown = io.StringIO()
    show(terminal(file=shown, width=columns))
    return f'<pre style="line-height: 1.25; white-space: pre; overflow-x: auto">{escape(shown.getvalue())}</pre>'


class Detail(IntEnum):
    """How much a command prints."""

    QUIET = 0  # errors and the end
    NORMAL = 1
    VERBOSE = 2  # every step, and what libraries log


_details = [Detail.NORMAL]


def detail() -> Detail:
    """How much the present command prints."""
    return _details[-1]


@contextmanager
def printing(much: Detail) -> Iterator[None]:
    """Inside, commands print this much."""
    _details.append(much)
    try:
        yield
    finally:
        _details.remove(much)


Part = float | None  # of what is under way: 0 to 1, or not known
_views: list[Callable[[str, Part], None]] = []  # live views, which show what is under way themselves
_outer: list[str] = []  # what is under way


@contextmanager
def shown_in(view: Callable[[str, Part], None]) -> Iterator[None]:
    """Inside, a live view shows what is under way: it is called with words, and with none when it is over."""
    _views.append(view)
    try:
        yield
    finally:
        _views.remove(view)


@contextmanager
def under_way(what: str) -> Iterator[Callable[[float], None]]:
    """Show that something is under way until the block ends, if it takes long; within another one nothing is shown.

    Whoever knows the part that is done calls what this gives with it. Only rank 0's main thread shows anything.
    """
    is_shown = detail() > Detail.QUIET and not _outer and _is_main()
    if not is_shown:
        yield lambda part: None
        return
    _outer.append(what)
    shown = _InView(what, _views[-1]) if _views else _OnItsOwn(what)
    try:
        yield shown.update
    finally:
        _outer.remove(what)
        shown.close()


def _is_main() -> bool:
    rank = os.environ.get("RANK") or os.environ.get("SLURM_PROCID") or "0"
    return threading.current_thread() is threading.main_thread() and rank == "0"


class _InView:
    """What is under way while a live view is open."""

    def __init__(self, what: str, view: Callable[[str, Part], None]) -> None:
        self._what, self._view = what, view
        view(what, None)

    def update(self, part: float) -> None:
        self._view(self._what, part)

    def close(self) -> None:
        self._view("", None)


class _OnItsOwn:
    """What is under way where no live view is open: shown by a thread, once it has taken some time."""

    BAR_SECONDS, LINE_SECONDS = 0.5, 5.0  # in a terminal, in a pipe

    def __init__(self, what: str) -> None:
        self._what = what
        self._part: Part = None
        self._bar: Any = None
        self._lock = threading.Lock()
        self._is_open = True
        seconds = self.BAR_SECONDS if sys.stderr.isatty() else self.LINE_SECONDS
        self._timer = threading.Timer(seconds, self._show)
        self._timer.daemon = True
        self._timer.start()

    def _show(self) -> None:
        with self._lock:
            if not self._is_open:
                return
            if not sys.stderr.isatty():
                echo_line(f"{self._what} ...", err=True)
                return
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

            words = TextColumn("{task.description}", markup=False)
            console = terminal(stderr=True)
            self._bar = Progress(words, BarColumn(), TimeElapsedColumn(), console=console, transient=True)
            self._bar.add_task(self._what, total=None)
            self._bar.start()
            self._draw()

    def update(self, part: float) -> None:
        with self._lock:
            self._part = part
            self._draw()

    def _draw(self) -> None:
        if self._bar is not None and self._part is not None:
            self._bar.update(self._bar.task_ids[0], total=1.0, completed=self._part)

    def close(self) -> None:
        self._timer.cancel()
        with self._lock:
            self._is_open = False
            if self._bar is not None:
                self._bar.stop()

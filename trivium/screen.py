"""What reaches a terminal: every text without control characters, and nothing in a name or document is markup.

Documents, file names and names in configs may hold escape sequences, which move the cursor, rename the window or write
over what was printed before. All output goes through here; they are shown as `\\u001b`.
"""

import re
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

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


def terminal(*, stderr: bool = False) -> "Console":
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

    return PlainConsole(stderr=stderr, markup=False, emoji=False)

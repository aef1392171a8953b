"""A launch -> the view that fits where it prints: a live view, plain lines, or only errors and the end."""

from trivium.run.events import Sink
from trivium.screen import Detail, detail, terminal
from trivium.train.screens.lines import Lines, QuietLines
from trivium.train.screens.live import LiveView
from trivium.train.screens.standing import Launch


def terminal_view(launch: Launch, every: int) -> Sink:
    """The live view where there is a terminal, else lines; as much as the command is to print."""
    if detail() is Detail.QUIET:
        return QuietLines()
    console = terminal()
    every_step = detail() is Detail.VERBOSE
    if console.is_terminal:
        return LiveView(launch, console, every_step=every_step)
    return Lines(launch, 1 if every_step else every)

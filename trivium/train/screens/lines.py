"""Events -> plain lines for a pipe or a file: each step with the time so far and the time left."""

import sys
from typing import TextIO

from trivium.run.events import Ended, Evaluated, Event, Failed, SaveFailed, StepTaken
from trivium.screen import one_line
from trivium.train.screens.standing import Launch, Standing

LOUD = (SaveFailed, Failed, Ended)  # what is printed by a quiet launch too


class Worded:
    """Turns events into lines: those of steps have times, those of evaluations how validation stood before."""

    def __init__(self, launch: Launch) -> None:
        self._standing = Standing(launch)

    def line(self, event: Event) -> str:
        """An event's line."""
        self._standing.write(event)
        more = ""
        if isinstance(event, StepTaken):
            more = f"  {self._standing.times}"
        elif isinstance(event, Evaluated) and event is self._standing.validation and self._standing.change:
            more = f"; {self._standing.change}"
        return one_line(event.line() + more)


class Lines:
    """Prints one line for each event, and one for every `every`th step."""

    def __init__(self, launch: Launch, every: int, file: TextIO | None = None) -> None:
        self._words = Worded(launch)
        self._every = every
        self._file = file or sys.stdout

    def write(self, event: Event) -> None:
        line = self._words.line(event)
        if not isinstance(event, StepTaken) or event.step % self._every == 0:
            self._file.write(line + "\n")  # in one piece: saves print from a thread of their own
            self._file.flush()

    def close(self) -> None:
        """There is nothing to close."""


class QuietLines:
    """Prints what went wrong, and the end."""

    def write(self, event: Event) -> None:
        if isinstance(event, LOUD):
            file = sys.stdout if isinstance(event, Ended) else sys.stderr
            file.write(one_line(event.line()) + "\n")
            file.flush()

    def close(self) -> None:
        """There is nothing to close."""

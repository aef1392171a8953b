"""The progress of preparing, on standard error: a bar in a terminal, else a plain line every ten seconds."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from trivium.config.numbers import show_count
from trivium.screen import Detail, detail, echo_line, terminal

LINE_SECONDS = 10.0


class ProgressCounts:
    """What was done so far, in numbers."""

    def __init__(self, title: str, total: int) -> None:
        self.title, self.total = title, max(1, total)
        self.input_bytes = self.text_bytes = self.tokens = 0
        self._started = time.monotonic()

    def add(self, input_bytes: int, text_bytes: int, tokens: int) -> None:
        """Add what was done since the last call."""
        self.input_bytes += input_bytes
        self.text_bytes += text_bytes
        self.tokens += tokens

    @property
    def speed(self) -> str:
        """`12.3 MB/s, 301M tokens`."""
        seconds = max(1e-9, time.monotonic() - self._started)
        return f"{self.text_bytes / 1e6 / seconds:.1f} MB/s, {show_count(self.tokens)} tokens"

    @property
    def time_left(self) -> str:
        """`4:05 left`, at the speed so far; empty before the first bytes."""
        if not self.input_bytes:
            return ""
        seconds = time.monotonic() - self._started
        left = round(seconds * max(0, self.total - self.input_bytes) / self.input_bytes)
        hours, minutes = divmod(left // 60, 60)
        return (f"{hours}:{minutes:02d}:{left % 60:02d}" if hours else f"{minutes}:{left % 60:02d}") + " left"


class ProgressLines(ProgressCounts):
    """Prints a line every ten seconds."""

    def __init__(self, title: str, total: int) -> None:
        super().__init__(title, total)
        self._last = time.monotonic()

    def add(self, input_bytes: int, text_bytes: int, tokens: int) -> None:
        super().add(input_bytes, text_bytes, tokens)
        if time.monotonic() - self._last >= LINE_SECONDS:
            self._last = time.monotonic()
            share = min(1, self.input_bytes / self.total)
            say(f"{self.title}: {share:.0%}, {self.speed}, {self.time_left}")


@contextmanager
def show_progress(title: str, total: int) -> Iterator[ProgressCounts]:
    """Show how much of `total` bytes is done until the block ends."""
    if detail() is Detail.QUIET:
        yield ProgressCounts(title, total)
        return
    if not sys.stderr.isatty():
        yield ProgressLines(title, total)
        return
    from rich.progress import BarColumn, Progress, TextColumn

    speed = TextColumn("{task.percentage:>3.0f}%  {task.fields[now]}", markup=False)
    columns = TextColumn("{task.description}", markup=False), BarColumn(), speed
    with Progress(*columns, console=terminal(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=total, now="")

        class ProgressBar(ProgressCounts):
            def add(self, input_bytes: int, text_bytes: int, tokens: int) -> None:
                super().add(input_bytes, text_bytes, tokens)
                bar.update(task, completed=self.input_bytes, now=f"{self.speed}, {self.time_left}")

        yield ProgressBar(title, total)


def say(line: str) -> None:
    """Print a line on standard error, unless the command is quiet."""
    if detail() is not Detail.QUIET:
        echo_line(line, err=True)

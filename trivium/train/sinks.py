"""Where the events of a launch go: the file, the terminal, the trackers (`trackers/`).

The terminal gets a live view, or plain lines where it is a pipe.
"""

import sys
from collections.abc import Callable, Mapping
from typing import TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from trivium.config.numbers import show_count
from trivium.plan.plan import CompletePlan
from trivium.run.events import Event, Sink, StepTaken
from trivium.screen import one_line, terminal


class Sinks:
    """All sinks of a launch; none on ranks other than the first. Whatever is written is progress."""

    def __init__(self, beat: Callable[[], None]) -> None:
        self._beat = beat
        self._sinks: list[Sink] = []

    def add(self, *sinks: Sink) -> None:
        self._sinks += sinks

    def write(self, event: Event) -> None:
        self._beat()
        for sink in self._sinks:
            sink.write(event)

    def close(self) -> None:
        for sink in self._sinks:
            sink.close()
        self._sinks = []


class Lines:
    """Prints one line for each event, and one for every `every`th step."""

    def __init__(self, every: int, file: TextIO | None = None) -> None:
        self._every = every
        self._file = file or sys.stdout

    def write(self, event: Event) -> None:
        if not isinstance(event, StepTaken) or event.step % self._every == 0:
            self._file.write(one_line(event.line()) + "\n")  # in one piece: saves print from a thread of their own
            self._file.flush()

    def close(self) -> None:
        """There is nothing to close."""


class LiveView:
    """Progress of run and stage, loss, speed, shares planned and given; other events scroll by above."""

    def __init__(self, plan_now: Callable[[], CompletePlan], console: Console) -> None:
        self._plan_now = plan_now
        self._given: dict[str, int] = {}
        self._stage = -1
        self._device: Mapping[str, int] = {}  # its memory, when it was last compared
        columns = TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn()
        self._progress = Progress(*columns, TimeRemainingColumn(), console=console)
        self._run_bar = self._progress.add_task("run", total=plan_now().total_steps)
        self._stage_bar = self._progress.add_task("stage", total=1)
        self._live = Live(Group(self._progress), console=console, refresh_per_second=4, transient=True)
        self._live.start()

    def write(self, event: Event) -> None:
        if not isinstance(event, StepTaken):
            self._live.console.print(Text(one_line(event.line())))
            return
        plan = self._plan_now()
        stage = plan.stage_at(event.step - 1)
        if stage.index != self._stage:
            self._stage = stage.index
            self._given, self._device = {}, {}
            self._progress.reset(self._stage_bar, total=stage.steps, description=f"stage {stage.name}")
        for name, count in event.loss_tokens_by_source.items():
            self._given[name] = self._given.get(name, 0) + count
        self._device = event.device_memory or self._device
        self._progress.update(self._run_bar, total=plan.total_steps, completed=event.step)
        self._progress.update(self._stage_bar, completed=event.step - stage.start)
        self._live.update(Group(self._progress, self._figures(event)))

    def _figures(self, event: StepTaken) -> Table:
        table = Table.grid(padding=(0, 2))
        mfu = "" if event.mfu is None else f"mfu {event.mfu:.1%}"
        speed = f"{show_count(event.tokens_per_second)} tokens/s"
        lines: list[tuple[str, ...]] = [(f"loss {event.loss:.4f}", f"lr {event.lr['matrix']:.3g}", speed, mfu)]
        if event.extra:
            lines.append(tuple(f"{name.replace('_', ' ')} {value:.4f}" for name, value in event.extra.items()))
        if self._device:
            lines.append(device_words(self._device))
        shares = self._plan_now().stage_at(event.step - 1).shares
        whole = max(1, sum(self._given.values()))
        for name, share in shares.items():
            given = self._given.get(name, 0) / whole
            loss = event.loss_by_source.get(name)
            shown = "" if loss is None else f"loss {loss:.4f}"
            lines.append((name, f"share {float(share):.1%}", f"read {given:.1%}", shown))
        for cells in lines:
            table.add_row(*map(Text, cells))
        return table

    def close(self) -> None:
        """Leave the terminal as it was."""
        self._live.stop()


def device_words(memory: Mapping[str, int]) -> tuple[str, ...]:
    """`GPU 61.2 of 84.8 GB`, `reserved 64.0 GB`, `predicted 60.5 GB (-1.1%)`, `2 allocator retries`."""
    gigabytes = {name: f"{size / 1e9:.1f}" for name, size in memory.items()}
    words = [f"GPU {gigabytes['active']} of {gigabytes['total']} GB", f"reserved {gigabytes['reserved']} GB"]
    if "predicted" in memory:
        error = memory["predicted"] / max(1, memory["active"]) - 1
        words.append(f"predicted {gigabytes['predicted']} GB ({error:+.1%})")
    return (*words, f"{memory['retries']:,} allocator retries") if memory["retries"] else tuple(words)


def terminal_view(plan_now: Callable[[], CompletePlan], every: int) -> Sink:
    """The live view where there is a terminal, else lines."""
    console = terminal()
    return LiveView(plan_now, console) if console.is_terminal else Lines(every)

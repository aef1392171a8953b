"""What a person sees while a run goes on: a live view in a terminal, plain lines elsewhere."""

import sys
from typing import TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from trivium.config.numbers import show_count
from trivium.plan.plan import Plan
from trivium.run.events import Event, StepTaken


class Lines:
    """One line an event; steps every so often."""

    def __init__(self, every: int, file: TextIO | None = None) -> None:
        self._every = every
        self._file = file or sys.stdout

    def write(self, event: Event) -> None:
        """Print what is worth a line."""
        if not isinstance(event, StepTaken) or event.step % self._every == 0:
            print(event.line(), file=self._file, flush=True)

    def close(self) -> None:
        """Nothing to do."""


class LiveView:
    """Progress of run and stage, loss, speed, shares planned and given; other events scroll by above."""

    def __init__(self, plan: Plan, console: Console) -> None:
        self._plan = plan
        self._given: dict[str, int] = {}
        self._stage = -1
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TaskProgressColumn(),
            TimeRemainingColumn(),
        )
        self._progress = Progress(*columns, console=console)
        self._run_bar = self._progress.add_task("run", total=plan.total_steps)
        self._stage_bar = self._progress.add_task("stage", total=1)
        self._live = Live(Group(self._progress), console=console, refresh_per_second=4, transient=True)
        self._live.start()

    def write(self, event: Event) -> None:
        """Take one event into the view."""
        if not isinstance(event, StepTaken):
            self._live.console.print(Text(event.line()))
            return
        stage = self._plan.stage_at(event.step - 1)
        if stage.index != self._stage:
            self._stage = stage.index
            self._given = {}
            self._progress.reset(self._stage_bar, total=stage.steps, description=f"stage {stage.name}")
        for name, count in event.loss_tokens_by_source.items():
            self._given[name] = self._given.get(name, 0) + count
        self._progress.update(self._run_bar, completed=event.step)
        self._progress.update(self._stage_bar, completed=event.step - (stage.start or 0))
        self._live.update(Group(self._progress, self._figures(event)))

    def _figures(self, event: StepTaken) -> Table:
        table = Table.grid(padding=(0, 2))
        mfu = "" if event.mfu is None else f"mfu {event.mfu:.1%}"
        speed = f"{show_count(event.tokens_per_second)} tokens/s"
        _add(table, f"loss {event.mean_loss:.4f}", f"lr {event.lr['matrix']:.3g}", speed, mfu)
        if event.extra:
            _add(table, *(f"{name.replace('_', ' ')} {value:.4f}" for name, value in event.extra.items()))
        shares = self._plan.stage_at(event.step - 1).shares or {}
        whole = max(1, sum(self._given.values()))
        for name, share in shares.items():
            given = self._given.get(name, 0) / whole
            loss = event.loss_by_source.get(name)
            shown = "" if loss is None else f"loss {loss:.4f}"
            _add(table, name, f"share {float(share):.1%}", f"learnt {given:.1%}", shown)
        return table

    def close(self) -> None:
        """Leave the terminal as it was."""
        self._live.stop()


def _add(table: Table, *cells: str) -> None:
    table.add_row(*(Text(cell) for cell in cells))


def terminal_view(plan: Plan, every: int) -> Lines | LiveView:
    """The live view where there is a terminal, else lines."""
    console = Console()
    return LiveView(plan, console) if console.is_terminal else Lines(every)

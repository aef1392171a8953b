"""Events -> the live view of a terminal: stages as bars, times, figures, validation, memory, what is under way.

It is drawn four times a second from what the last events said, so that a step costs no drawing. Other events scroll by
above it.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from trivium.config.numbers import show_count
from trivium.plan.stage import CompleteStage
from trivium.run.events import Event, Failed, StepTaken
from trivium.screen import Part, one_line, shown_in
from trivium.train.screens.lines import Worded
from trivium.train.screens.standing import Launch, Standing, clock, device_words

MOST_STAGES, MOST_SOURCES = 5, 8  # that are shown
NAME_WIDTH = 24  # of a stage or a source
STOPS = "Ctrl-C finishes the step, saves a checkpoint and stops; again: ends at once"
DRY_STOPS = "Ctrl-C finishes the step and stops; a dry run keeps nothing"


class LiveView:
    """Where a launch stands, on the last lines of the terminal."""

    def __init__(self, launch: Launch, console: Console, *, every_step: bool = False) -> None:
        self._launch = launch
        self._every_step = every_step
        self._standing, self._words = Standing(launch), Worded(launch)
        self._last: StepTaken | None = None
        self._stage = -1
        self._given: dict[str, int] = {}
        self._device: Mapping[str, int] = {}  # its memory, when it was last compared
        self._under_way: tuple[str, Part] = ("", None)
        self._spinner = Spinner("dots")
        self._open = ExitStack()
        self._live = Live(get_renderable=self._render, console=console, refresh_per_second=4, transient=True)
        self._open.enter_context(self._live)
        self._open.enter_context(shown_in(self._show_under_way))

    def _show_under_way(self, what: str, part: Part) -> None:
        self._under_way = what, part

    def write(self, event: Event) -> None:
        self._standing.write(event)
        line = self._words.line(event)
        if isinstance(event, StepTaken):
            self._count(event)
        if isinstance(event, Failed):
            return  # whoever called prints the error
        if self._every_step or not isinstance(event, StepTaken):
            self._live.console.print(Text(line))

    def _count(self, event: StepTaken) -> None:
        stage = self._launch.plan().stage_at(event.step - 1)
        if stage.index != self._stage:
            self._stage, self._given, self._device = stage.index, {}, {}
        for name, count in event.loss_tokens_by_source.items():
            self._given[name] = self._given.get(name, 0) + count
        self._device = event.device_memory or self._device
        self._last = event

    def close(self) -> None:
        """Leave the terminal as it was."""
        self._open.close()

    def _render(self) -> RenderableType:
        lines: list[RenderableType] = [self._headline(), self._stages()]
        lines += self._figures()
        what, part = self._under_way
        if what:
            self._spinner.update(text=Text(what + ("" if part is None else f": {part:.0%}")))
            lines.append(self._spinner)
        stops = STOPS if self._launch.keeps else DRY_STOPS
        where = Text(one_line(str(self._launch.folder)), no_wrap=True, overflow="ellipsis")
        return Group(Text(), *lines, where, Text(stops, style="dim"))

    def _headline(self) -> RenderableType:
        plan, standing = self._launch.plan(), self._standing
        step = 0 if self._last is None else self._last.step
        left = standing.left
        cells = [
            Text(plan.config.run.name or "run", style="bold", no_wrap=True, overflow="ellipsis"),
            Text(f"step {step:,} of {plan.total_steps:,} ({step / plan.total_steps:.1%})", no_wrap=True),
            Text(f"elapsed {clock(standing.elapsed)}", no_wrap=True),
            Text("" if left is None else f"left {clock(left)}", no_wrap=True),
        ]
        return _row(cells)

    def _stages(self) -> RenderableType:
        """A bar for each stage: of many, those around the present one."""
        plan = self._launch.plan()
        step = 0 if self._last is None else self._last.step
        now = plan.stage_at(min(step, plan.total_steps - 1)).index
        first = max(0, min(now - MOST_STAGES // 2, len(plan.stages) - MOST_STAGES))
        table = Table.grid(padding=(0, 2), expand=True)
        table.add_column(max_width=NAME_WIDTH, no_wrap=True, overflow="ellipsis")
        table.add_column(ratio=1)
        table.add_column(no_wrap=True, justify="right")
        for stage in plan.stages[first : first + MOST_STAGES]:
            taken = max(0, min(step, stage.end) - stage.start)
            name = Text(one_line(stage.name), style="bold" if stage.index == now else "")
            bar = ProgressBar(total=stage.steps, completed=taken)
            table.add_row(name, bar, f"{taken:,} of {stage.steps:,}")
        more = len(plan.stages) - MOST_STAGES
        return table if more <= 0 else Group(table, Text(f"and {more:,} more stages", style="dim"))

    def _figures(self) -> Iterator[RenderableType]:
        event = self._last
        if event is None:
            return
        cells = [f"loss {event.loss:.4f}", f"lr {event.lr['matrix']:.3g}", f"norm {event.grad_norm:.3g}"]
        cells.append(f"{show_count(event.tokens_per_second)} tokens/s")
        if event.mfu is not None:
            cells.append(f"mfu {event.mfu:.1%}")
        yield _row(map(Text, cells))
        if event.extra:
            yield _row(Text(f"{name.replace('_', ' ')} {value:.4f}") for name, value in event.extra.items())
        validation = self._standing.validation
        if validation is not None and validation.loss is not None:
            change = self._standing.change
            at = f"validation {validation.loss:.4f} at step {validation.step:,}"
            yield Text(at + (f"; {change}" if change else ""))
        yield _row(map(Text, (*(device_words(self._device) if self._device else ()), _process(event))))
        yield self._sources(self._launch.plan().stage_at(event.step - 1), event)

    def _sources(self, stage: CompleteStage, event: StepTaken) -> RenderableType:
        """The stage's sources, those with the largest shares."""
        whole = max(1, sum(self._given.values()))
        table = Table.grid(padding=(0, 2))
        table.add_column(max_width=NAME_WIDTH, no_wrap=True, overflow="ellipsis")
        shares = sorted(stage.shares.items(), key=lambda pair: -pair[1])
        for name, share in shares[:MOST_SOURCES]:
            loss = event.loss_by_source.get(name)
            given = self._given.get(name, 0) / whole
            cells = (name, f"share {float(share):.1%}", f"read {given:.1%}", "" if loss is None else f"loss {loss:.4f}")
            table.add_row(*map(Text, cells))
        more = len(shares) - MOST_SOURCES
        return table if more <= 0 else Group(table, Text(f"and {more:,} more sources", style="dim"))


def _process(event: StepTaken) -> str:
    return f"memory of the process {event.memory / 1e9:.2f} GB"


def _row(cells: Iterable[Text]) -> Table:
    """Some words in one line; one that is too long for the terminal is wrapped."""
    table = Table.grid(padding=(0, 3, 0, 0))
    table.add_row(*cells)
    return table

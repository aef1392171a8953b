"""A step that went wrong, for people: figures around it, its rows by loss, and what leaves their documents out."""

from collections.abc import Mapping
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from trivium.run.folder import RunFolder
from trivium.screen import one_line
from trivium.why.override import fork_command, lines_without, overrides_without, rerun_command
from trivium.why.recorded import RecordedStep
from trivium.why.rows import ExplainedStep, ShownRow, run_config

AROUND = 4  # steps shown on each side
SHOWN_PIECES = 6  # of a row


def show_step(
    run: Path, explained: ExplainedStep, steps: Mapping[int, RecordedStep], console: Console, most: int
) -> None:
    """Print all of it."""
    step = explained.step
    head = f"step {step:,} of {run}: stage {explained.stage}, update {step + 1:,}"
    console.print(Text(one_line(head), style="bold"), highlight=False)
    console.print(figures_table([steps[at] for at in range(step - AROUND, step + AROUND + 1) if at in steps], step))
    recorded = steps[step]
    if recorded.skipped is not None:
        console.print(Text(one_line(f"no update was made: {recorded.skipped}")), highlight=False)
    num, shown = len(explained.rows), explained.rows[:most]
    out = explained.standing_out
    what = f"{num:,} rows by loss; {out:,} stand{'s' if out == 1 else ''} out"
    console.print(Text(f"\n{what}", style="bold"), highlight=False)
    for row in shown:
        _show_row(row, console)
    if num > len(shown):
        console.print(Text(f"... {num - len(shown):,} more: --rows {num}", style="dim"), highlight=False)
    _show_override(run, explained, console)


def figures_table(steps: list[RecordedStep], marked: int) -> Table:
    """Loss and gradient norm of neighbouring steps."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for header in ("", "step", "loss", "grad norm"):
        table.add_column(header, justify="right" if header else "left")
    table.add_column("")
    for each in steps:
        here = each.step == marked
        cells = (">" if here else "", f"{each.step:,}", figure(each.loss), figure(each.grad_norm), each.mark)
        table.add_row(*map(Text, cells), style="bold" if here else "")
    return table


def figure(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


def _show_row(row: ShownRow, console: Console) -> None:
    title = f"\nrow {row.row:,}: loss {row.loss:.4f}, {row.source}"
    console.print(Text(one_line(title.strip()), style="bold"), highlight=False)
    for piece in row.pieces[:SHOWN_PIECES]:
        where = f"  {row.source}:{piece.document}, tokens {piece.start:,} to {piece.stop:,}, {piece.where}"
        console.print(Text(one_line(where), style="cyan", overflow="ellipsis", no_wrap=True), highlight=False)
        if piece.text is not None:
            text = Text(f"    {' '.join(piece.text.split())}", overflow="ellipsis", no_wrap=True)
            console.print(text, highlight=False)
    more = len(row.pieces) - SHOWN_PIECES
    if more > 0:
        console.print(Text(f"  and {more:,} more documents", style="dim"), highlight=False)


def _show_override(run: Path, explained: ExplainedStep, console: Console) -> None:
    """What to write, and which commands try it and go on with it."""
    if not explained.suspects:
        console.print(Text("\nThese rows are a stream's, whose documents have no numbers. To skip the step, write:"))
        console.print(Text(f"  guard.skip_steps = [[{explained.step}, {explained.step + 1}]]"), highlight=False)
        return
    config = run_config(run)
    known = {name: source.without or () for name, source in config.sources.items()}
    overrides = overrides_without(explained.suspects, known)
    step = explained.step
    before = [each.step for each in RunFolder(run).checkpoints() if each.step <= step]
    parts = {
        "So that the rows that stand out do not count in the loss, write:": lines_without(explained.suspects, known),
        "To see what that changes, without changing the run:": [
            rerun_command(run, step, step + AROUND, explained.suspects)
        ],
        "To find which of the step's documents it is:": [f"{rerun_command(run, step, step, {})} --bisect"],
        "To go on without them:": [fork_command(run, max(before, default=None), overrides)],
    }
    for title, lines in parts.items():
        console.print(Text(f"\n{title}"), highlight=False)
        for line in lines:  # whole, so that it can be copied
            console.print(Text(one_line(f"  {line}")), highlight=False, soft_wrap=True)

"""What was found in a folder and what was chosen for it, for people: a table, and a line for each choice."""

from collections.abc import Iterator
from pathlib import Path
from textwrap import fill

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from trivium.config.numbers import show_count
from trivium.init.choose import Choice
from trivium.init.found import FoundFolder
from trivium.init.look import MOST_FILES

KINDS = {"records": "records", "chat": "conversations", "tokens": "tokens", "text": "text", "code": "code"}


def show_choice(choice: Choice, out: Path, console: Console) -> None:
    """Print what was found, what was passed over, and what the config says."""
    console.print(Group(_table(choice)), highlight=False)
    for line in (*_passed_over(choice.found), "", *_choices(choice)):
        console.print(Text(fill(line, console.width, subsequent_indent="  ")), highlight=False)
    console.print(Text(f"written: {out}"), highlight=False)


def _table(choice: Choice) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("found")
    table.add_column("kind")
    for name in ("files", "bytes", "documents", "tokens"):
        table.add_column(name, justify="right")
    for source in choice.sources:
        found, estimate = source.found, source.found.estimate
        held_out = round(source.tokens / (1 - (source.validation or 0)))
        counts = (found.size, estimate.documents, held_out)
        table.add_row(found.name, KINDS[found.kind], f"{len(found.files):,}", *map(show_count, counts))
    return table


def _passed_over(found: FoundFolder) -> Iterator[str]:
    for each in found.passed_over:
        files = f"{each.files:,} files, such as {each.example}" if each.files > 1 else each.example
        yield f"passed over: {files}: {each.reason}."
    if not found.is_whole:
        yield f"more than {MOST_FILES:,} files: the others are read too, but were not counted here."


def _choices(choice: Choice) -> Iterator[str]:
    spec = choice.spec
    yield f"machine: {choice.machine}"
    named = choice.tokenizer.config
    kind = "none" if named is None else "bytes" if named.kind == "bytes" else named.path
    yield f"tokenizer: {kind}, {choice.tokenizer.why}"
    stages = ", ".join(f"{stage.name} {show_count(stage.tokens)}" for stage in choice.stages)
    shape = f"{choice.rung.layers} layers of {choice.rung.width}, {show_count(spec.parameters)} parameters"
    yield f"model: {shape}, about {choice.memory / 1e9:.1f} GB of memory"
    yield f"stages: {stages} tokens; {choice.steps:,} steps, about {_minutes(choice.seconds)} on this machine when idle"


def _minutes(seconds: float) -> str:
    if seconds < 90:
        return f"{round(seconds)} seconds" if seconds >= 1.5 else "a second"
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"

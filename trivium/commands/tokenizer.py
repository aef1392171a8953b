"""`trivium tokenizer ...`: parse, call, print."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trivium.errors import UsageError

if TYPE_CHECKING:
    from trivium.data.documents import TextDocuments

CONFIGS = (".toml", ".yaml", ".yml")

app = typer.Typer(help="Make a tokenizer.", no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def tokenizer() -> None:
    """Make a tokenizer."""


@app.command()
def train(
    what: Annotated[
        list[str],
        typer.Argument(help="Files and folders of text; or a config and overrides.", show_default=False),
    ],
    out: Annotated[Path, typer.Option("--out", help="A folder for tokenizer.json.", show_default=False)],
    vocab: Annotated[int, typer.Option(help="Tokens, special ones included.")] = 32_768,
    column: Annotated[
        str | None, typer.Option(help="Where the text is, in JSONL and Parquet; else text.", show_default=False)
    ] = None,
    bad_lines: Annotated[
        float | None, typer.Option(min=0, max=1, help="The most lines that may hold no document, as a fraction.")
    ] = None,
) -> None:
    """Train a byte-level BPE on some texts, or on those of a config's sources."""
    from rich.console import Console
    from rich.progress import Progress

    from trivium.data.progress import say
    from trivium.data.train_tokenizer import train_tokenizer, write_tokenizer

    if (out / "tokenizer.json").exists():
        raise UsageError(f"--out: {out} has a tokenizer.json already. Name another folder, or take it away.")
    sources = _find(what, out, column, bad_lines)
    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task("reading", total=sum(each.size for each in sources))

        def texts() -> Iterator[str]:
            for each in sources:
                yield from each.read(lambda count: progress.advance(task, count))
            progress.update(task, description="merging", total=None)

        trained = train_tokenizer(texts(), vocab)
    path = write_tokenizer(trained, out)
    for each in sources:
        for line in each.bad.lines():
            say(f"{each.title}: left out {line}")
    typer.echo(f"{path}: {trained.vocab:,} tokens, from {trained.documents:,} texts, {trained.text_bytes:,} bytes")


def _find(what: list[str], out: Path, column: str | None, bad_lines: float | None) -> "list[TextDocuments]":
    """The text that is named, or that of a config's sources."""
    from trivium.data.bad import MOST_BAD
    from trivium.data.documents import TextDocuments
    from trivium.data.inputs import list_inputs

    if not (what[0].endswith(CONFIGS) and Path(what[0]).is_file()):
        most_bad = MOST_BAD if bad_lines is None else bad_lines
        return [TextDocuments(str(out), list_inputs(what), column or "text", most_bad)]
    if column is not None:
        raise UsageError("tokenizer train: --column goes with files; a config has it in its sources.")
    return list(_sources_of(Path(what[0]), what[1:], bad_lines))


def _sources_of(file: Path, overrides: list[str], bad_lines: float | None) -> "Iterator[TextDocuments]":
    from trivium.config.load import load
    from trivium.config.sources import TextSource
    from trivium.data.documents import TextDocuments
    from trivium.data.inputs import list_inputs

    config = load(file, overrides, world_size=1).config  # ranks decide nothing here
    chosen = {name: each for name, each in config.sources.items() if isinstance(each, TextSource)}
    chosen = {name: each for name, each in chosen.items() if not each.validation_only}
    if not chosen:
        raise UsageError(f'{file.name}: has no source of kind = "text" to train on. Name files or folders instead.')
    for name, each in chosen.items():
        assert each.path is not None, "a checked source has a path"
        most_bad = each.bad_lines if bad_lines is None else bad_lines
        yield TextDocuments(name, list_inputs(each.path), each.column, most_bad)

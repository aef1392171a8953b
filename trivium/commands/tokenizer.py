"""`trivium tokenizer ...`: parse, call, print."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from trivium.errors import UsageError

app = typer.Typer(help="Make a tokenizer.", no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def tokenizer() -> None:
    """Make a tokenizer."""


@app.command()
def train(
    texts: Annotated[list[Path], typer.Argument(help="Text and JSONL files, or folders.", show_default=False)],
    out: Annotated[Path, typer.Option("--out", help="A folder for tokenizer.json.", show_default=False)],
    vocab: Annotated[int, typer.Option(help="Tokens, special ones included.")] = 32_768,
    column: Annotated[str, typer.Option(help="Where the text is, in JSONL.")] = "text",
) -> None:
    """Train a byte-level BPE on some texts."""
    from rich.console import Console
    from rich.progress import Progress

    from trivium.data.train_tokenizer import read_texts, train_tokenizer, write_tokenizer

    if (out / "tokenizer.json").exists():
        raise UsageError(f"--out: {out} has a tokenizer.json already. Name another folder, or take it away.")
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("reading", total=_bytes_of(texts))

        def followed() -> Iterator[str]:
            for text, read in read_texts(texts, column):
                progress.advance(task, read)
                yield text
            progress.update(task, description="merging", total=None)

        trained = train_tokenizer(followed(), vocab)
    path = write_tokenizer(trained, out)
    typer.echo(f"{path}: {trained.vocab:,} tokens, from {trained.documents:,} texts, {trained.text_bytes:,} bytes")


def _bytes_of(paths: list[Path]) -> int:
    files = [each for path in paths for each in (path.rglob("*") if path.is_dir() else [path])]
    return sum(each.stat().st_size for each in files if each.is_file())

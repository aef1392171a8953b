"""`trivium tokenizer ...`: parse, call, print."""

from pathlib import Path
from typing import Annotated

import typer

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
    from trivium.text.train_tokenizer import train_on_texts
    from trivium.textfiles.progress import say

    trained = train_on_texts(what, out, vocab, column=column, bad_lines=bad_lines)
    for line in trained.skipped:
        say(line)
    typer.echo(str(trained))

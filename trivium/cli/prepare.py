"""`trivium prepare`, `verify` and `tokenizer train`: text and token files."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from trivium.cli.options import BadLines, ConfigFile, Dialect, Overrides, Quiet, WorldSize, how_much
from trivium.errors import UsageError
from trivium.screen import echo, echo_line, printing

tokenizer = typer.Typer(help="Make a tokenizer.", no_args_is_help=True, rich_markup_mode=None)


@tokenizer.callback()
def tokenizer_group() -> None:
    """Make a tokenizer."""


@tokenizer.command("train", epilog="\b\nExample:\n  trivium tokenizer train my-texts --vocab 4096 --out my-tokenizer")
def train_tokenizer(
    what: Annotated[list[str], typer.Argument(help="Files and folders of text, or a config and overrides.")],
    out: Annotated[Path, typer.Option(help="The folder for tokenizer.json.")],
    vocab: Annotated[int, typer.Option(help="The number of tokens, special ones included.")] = 32_768,
    column: Annotated[
        str | None, typer.Option(help="The field of JSONL and Parquet that has the text.", show_default="text")
    ] = None,
    bad_lines: BadLines = None,
    fim: Annotated[bool, typer.Option("--fim", help="Add the three tokens of fill-in-the-middle.")] = False,
    quiet: Quiet = False,
) -> None:
    """Train a byte-level BPE on texts, or on the texts of a config's sources."""
    from trivium.text.train_tokenizer import train_on_texts
    from trivium.textfiles.progress import say

    with printing(how_much(quiet)):
        trained = train_on_texts(what, out, vocab, column=column, bad_lines=bad_lines, fim=fim)
        for line in trained.skipped:
            say(line)
    echo(str(trained))


def prepare(
    what: Annotated[list[str], typer.Argument(help="A config and overrides; with --out, files and folders of text.")],
    out: Annotated[
        Path | None, typer.Option(help="The folder for the token files. By default the cache folder.")
    ] = None,
    tokenizer: Annotated[str | None, typer.Option(help="With --out: a tokenizer.json, a folder, or bytes.")] = None,
    column: Annotated[str, typer.Option(help="With --out: the field of JSONL and Parquet that has the text.")] = "text",
    add: Annotated[
        list[str] | None,
        typer.Option(
            help="With --out: write bos before, eos after each document, or none. By default eos; bos without an eos."
        ),
    ] = None,
    written: Annotated[
        Literal["ds", "megatron"],
        typer.Option("--format", help="With --out: ds writes datatrove's files, megatron Megatron's .bin and .idx."),
    ] = "ds",
    bad_lines: BadLines = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes. By default one for each core.")] = None,
    quiet: Quiet = False,
    dialect: Dialect = None,
    world_size: WorldSize = None,
) -> None:
    """Turn text into token files. Takes a config's sources, or with --out files and folders."""
    from trivium.sources.commands import prepare_paths, prepare_sources

    if out is not None:
        with printing(how_much(quiet)):
            echo_line(prepare_paths(what, out, tokenizer, column, add, bad_lines, workers, written))
        return
    if written == "megatron":
        why = "A config's conversations have loss masks, which Megatron's files cannot hold."
        raise UsageError(f"prepare: --format megatron needs --out and files of text. {why}")
    if tokenizer is not None or add:
        raise UsageError("prepare: --tokenizer and --add need --out; a config has these in its tables.")
    from trivium.config.load import load
    from trivium.plan.inherit import inherited

    loaded = load(Path(what[0]), what[1:], dialect=dialect, world_size=world_size)
    with loaded.places.named(), printing(how_much(quiet)):
        for line in prepare_sources(inherited(loaded.config).config, bad_lines, workers):
            echo_line(line)


def verify(
    config: ConfigFile,
    overrides: Overrides = None,
    write: Annotated[bool, typer.Option("--write", help="Write a manifest.json where a folder has none.")] = False,
    quiet: Quiet = False,
    dialect: Dialect = None,
    world_size: WorldSize = None,
) -> None:
    """Read token files again, and compare them with manifests."""
    from trivium.config.load import load
    from trivium.plan.inherit import inherited
    from trivium.sources.commands import verify_sources

    loaded = load(config, overrides or (), dialect=dialect, world_size=world_size)
    with loaded.places.named(), printing(how_much(quiet)):
        for line in verify_sources(inherited(loaded.config).config, write=write):
            echo_line(line)

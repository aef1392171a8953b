"""`trivium init`, `quickstart` and `examples`: the first config, the first run, and configs to begin from."""

from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from trivium.cli.options import INTERRUPTED
from trivium.errors import STOPPED
from trivium.screen import echo, echo_line, terminal

Folder = Annotated[Path, typer.Argument(help="A folder of text, code, JSONL, Parquet, token files or conversations.")]
Out = Annotated[Path, typer.Option(help="The config to write.")]
Minutes = Annotated[
    float | None,
    typer.Option(help="How long training may take on this machine. By default 5, with a GPU 60.", show_default=False),
]
Tokenizer = Annotated[
    str | None,
    typer.Option(help="A tokenizer.json, a folder, a name on the Hub, or bytes. By default found, or trained."),
]


def init(folder: Folder, out: Out = Path("run.toml"), minutes: Minutes = None, tokenizer: Tokenizer = None) -> None:
    """Look at a folder, and write a config that trains on it. Every value has a comment that says why."""
    from trivium.init.init import init_run
    from trivium.init.show import show_choice
    from trivium.init.write import run_name

    choice = init_run(folder, out, minutes=minutes, tokenizer=tokenizer)
    show_choice(choice, out, terminal())
    echo_line(f"next:    trivium train {quote(str(out))}, then trivium report runs/{run_name(folder)}")


def quickstart(
    folder: Folder, out: Out = Path("run.toml"), minutes: Minutes = None, tokenizer: Tokenizer = None
) -> None:
    """From a folder of text to a trained model and its report. Stopped, the same command goes on."""
    from trivium.init.quickstart import Quickstart, run_quickstart

    try:
        finished = run_quickstart(Quickstart(folder, out, minutes, tokenizer), terminal())
    except KeyboardInterrupt:
        echo("\nStopped. The same command goes on.")
        raise typer.Exit(INTERRUPTED) from None
    if not finished:
        raise typer.Exit(STOPPED)


def examples(
    folder: Annotated[Path, typer.Argument(help="The folder to write them to.")] = Path("examples"),
    listed: Annotated[bool, typer.Option("--list", help="Only list them.")] = False,
) -> None:
    """Write the example configs into a folder."""
    from trivium.init.examples import copy_examples, list_examples

    if listed:
        for line in list_examples():
            echo_line(line)
    else:
        echo_line(copy_examples(folder))

"""The command line: parse, call, print. What a command needs is imported when it runs."""

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from trivium.errors import TriviumError

app = typer.Typer(
    help="Train language models in stages: one TOML file says what a model reads, and when.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


class DialectName(StrEnum):
    """Whose config it is."""

    trivium = "trivium"
    torchtitan = "torchtitan"


ConfigFile = Annotated[Path, typer.Argument(help="A config: run.toml, or another tool's.", show_default=False)]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(help="Overrides, such as stages.0.tokens=1B or stages.long.seq_len=4096.", show_default=False),
]
DialectOption = Annotated[
    DialectName | None, typer.Option("--dialect", help="Whose config it is; else recognised by its tables.")
]
WorldSize = Annotated[
    int | None, typer.Option(min=1, help="Ranks, for configs of other tools that give a batch size per rank.")
]


@app.command()
def plan(
    config: ConfigFile,
    overrides: Overrides = None,
    json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
    dialect: DialectOption = None,
    world_size: WorldSize = None,
) -> None:
    """Show what every stage will read, before the first step."""
    from rich.console import Console

    from trivium.config.load import load
    from trivium.plan.export import plan_json
    from trivium.plan.make import make_plan
    from trivium.plan.show import show_plan

    loaded = load(config, overrides or (), dialect=dialect, world_size=world_size)
    made = make_plan(loaded.config)
    if json:
        say_json({**plan_json(made), "notes": [str(note) for note in loaded.warnings]})
    else:
        show_plan(made, Console(soft_wrap=False), loaded.warnings)


@app.command()
def convert(
    config: ConfigFile,
    overrides: Overrides = None,
    dialect: DialectOption = None,
    world_size: WorldSize = None,
) -> None:
    """Print another tool's config as one of ours."""
    import tomli_w

    from trivium.config.load import load

    loaded = load(config, overrides or (), dialect=dialect, world_size=world_size)
    for note in loaded.warnings:
        typer.echo(f"# {note}")
    typer.echo(tomli_w.dumps(loaded.raw), nl=False)


@app.command()
def schema() -> None:
    """Print the JSON Schema of a config, with which an editor completes and checks it."""
    from trivium.config.json_schema import config_schema

    say_json(config_schema())


def say_json(value: object) -> None:
    """Print for machines."""
    import json

    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


def main() -> None:
    """Run a command; what a user can mend is one line each and exit code 2."""
    try:
        app()
    except TriviumError as error:
        typer.echo(str(error), err=True)
        sys.exit(2)


if __name__ == "__main__":
    main()

"""`trivium plan`, `convert` and `schema`: a config shown, translated, described."""

from pathlib import Path
from typing import Annotated

import typer

from trivium.cli.options import ConfigFile, Dialect, Json, Overrides, Verbose, WorldSize, print_json
from trivium.config.redact import redacted
from trivium.screen import echo, terminal


def plan(
    config: ConfigFile,
    overrides: Overrides = None,
    json: Json = False,
    html: Annotated[Path | None, typer.Option(help="Write a page that draws the plan.")] = None,
    prepare: Annotated[
        bool, typer.Option("--prepare", help="First fetch and tokenise what is not prepared yet; may take hours.")
    ] = False,
    dialect: Dialect = None,
    world_size: WorldSize = None,
    verbose: Verbose = False,
) -> None:
    """Show what each stage will read before the first step."""
    from trivium.config.load import load
    from trivium.plan.export import plan_json
    from trivium.plan.make import make_plan

    loaded = load(config, overrides or (), dialect=dialect, world_size=world_size)
    with loaded.places.named():
        made = make_plan(loaded.config, prepare=prepare)
    exported = plan_json(made, loaded)
    if html is not None:
        import tomli_w

        from trivium.report.page import write_plan

        echo(write_plan(exported, tomli_w.dumps(redacted(loaded.raw)), html), err=json)
    if json:
        print_json(exported)
    elif html is None:
        from trivium.plan.show import show_plan

        show_plan(made, terminal(), loaded, verbose=verbose)


def convert(
    config: ConfigFile,
    overrides: Overrides = None,
    dialect: Dialect = None,
    world_size: WorldSize = None,
    verbose: Verbose = False,
) -> None:
    """Print another tool's config as a config of trivium."""
    import tomli_w

    from trivium.config.load import load

    loaded = load(config, overrides or (), dialect=dialect, world_size=world_size)
    groups = {"differs from theirs": loaded.notes.differs, "warnings": loaded.warnings}
    if verbose:
        groups["decides nothing"] = loaded.notes.decides_nothing
    for title, notes in groups.items():
        if notes:
            echo(f"# {title}")
        for note in notes:
            echo(f"#   {note}")
    echo(tomli_w.dumps(loaded.raw), end="")


def schema() -> None:
    """Print the JSON Schema of a config. An editor uses it to complete and check the file."""
    from trivium.config.schema import config_schema

    print_json(config_schema())

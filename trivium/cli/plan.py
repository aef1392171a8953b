"""`trivium plan`, `check`, `convert` and `schema`: a config shown, tried, translated, described."""

from pathlib import Path
from typing import Annotated

import typer

from trivium.cli.options import ConfigFile, Dialect, Json, Overrides, Price, Verbose, WorldSize, print_json
from trivium.config.redact import redacted
from trivium.errors import UsageError
from trivium.forecast.machine import MFU, make_machine
from trivium.screen import echo, echo_line, terminal


def plan(
    config: ConfigFile,
    overrides: Overrides = None,
    json: Json = False,
    html: Annotated[Path | None, typer.Option(help="Write a page that draws the plan.")] = None,
    prepare: Annotated[
        bool, typer.Option("--prepare", help="First fetch and tokenise what is not prepared yet; may take hours.")
    ] = False,
    on: Annotated[
        str | None,
        typer.Option(help="Also show memory, time and cost on these devices, such as 64xH100."),
    ] = None,
    memory: Annotated[str | None, typer.Option(help="The memory of a device, such as 80GB.")] = None,
    flops: Annotated[str | None, typer.Option(help="The peak of a device in FLOP/s, such as 989T.")] = None,
    price: Price = None,
    mfu: Annotated[float | None, typer.Option(help=f"The fraction of the peak that is used; absent: {MFU}.")] = None,
    dialect: Dialect = None,
    world_size: WorldSize = None,
    verbose: Verbose = False,
) -> None:
    """Show what each stage will read before the first step."""
    from trivium.config.load import load
    from trivium.plan.export import plan_json
    from trivium.plan.make import make_plan
    from trivium.run.decisions import run_decisions, run_places

    machine = make_machine(on, memory, flops, price)
    if mfu is not None and machine is None:
        raise UsageError("--mfu is the fraction of devices' peak. Say which devices: --on 64xH100.")
    ranks = world_size or (None if machine is None else machine.count)
    loaded = load(config, overrides or (), dialect=dialect, world_size=ranks)
    with loaded.places.named():
        made = make_plan(loaded.config, prepare=prepare, decisions=run_decisions(*run_places(loaded.config)))
    exported = plan_json(made, loaded)
    forecast = None
    if machine is not None:
        from trivium.forecast.forecast import make_forecast
        from trivium.forecast.show import forecast_json, show_forecast

        forecast = make_forecast(made, machine, MFU if mfu is None else mfu)
        exported["forecast"] = forecast_json(forecast)
    if html is not None:
        import tomli_w

        from trivium.report.page import write_plan

        echo_line(write_plan(exported, tomli_w.dumps(redacted(loaded.raw)), html), err=json)
    if json:
        print_json(exported)
    elif html is None:
        from trivium.plan.show import show_plan

        show_plan(made, terminal(), loaded, verbose=verbose)
        if forecast is not None:
            show_forecast(forecast, terminal())


def check(
    config: ConfigFile,
    overrides: Overrides = None,
    ranks: Annotated[int, typer.Option(min=1, help="The ranks of the launch.")] = 1,
    json: Json = False,
    dialect: Dialect = None,
) -> None:
    """Take a step of every stage as some of many ranks, without a device. Shows that the layout runs."""
    from dataclasses import asdict

    from trivium.config.load import load
    from trivium.forecast.layout import check_layout
    from trivium.forecast.show import show_check
    from trivium.plan.make import make_plan
    from trivium.run.decisions import run_decisions, run_places

    loaded = load(config, overrides or (), dialect=dialect, world_size=ranks)
    with loaded.places.named():
        made = make_plan(loaded.config, decisions=run_decisions(*run_places(loaded.config)))
    mesh, found = check_layout(made, ranks)
    if json:
        names = [stage.name for stage in made.stages]
        memory = {rank: dict(zip(names, peaks, strict=True)) for rank, peaks in found.items()}
        print_json({"ranks": ranks, "layout": asdict(mesh), "memory": memory})
    else:
        show_check(made, mesh, found, terminal())


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
            echo_line(f"#   {note}")
    echo(tomli_w.dumps(loaded.raw), end="")


def schema() -> None:
    """Print the JSON Schema of a config. An editor uses it to complete and check the file."""
    from trivium.config.schema import config_schema

    print_json(config_schema())

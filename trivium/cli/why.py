"""`trivium why` and `rerun`: the rows behind a step's loss, and steps taken again without some documents."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from trivium.cli.options import Json, print_json
from trivium.errors import UsageError
from trivium.screen import terminal

Run = Annotated[Path, typer.Argument(help="A run's folder.")]


def why(
    run: Run,
    step: Annotated[int | None, typer.Option(min=0, help="The step. By default the last that spiked.")] = None,
    rows: Annotated[int, typer.Option(min=1, help="Show this many rows, those with the highest losses.")] = 5,
    json: Json = False,
) -> None:
    """Show why a step's loss was high. Its rows by loss, with documents, text, and what leaves them out."""
    from trivium.why.recorded import last_trouble, recorded_steps
    from trivium.why.rows import explain_step, with_fewer
    from trivium.why.show import show_step

    steps = recorded_steps(run)
    at = last_trouble(steps, run) if step is None else step
    if at not in steps:
        raise UsageError(f"{run}: step {at:,} has not been taken. It has {min(steps):,} to {max(steps):,}.")
    explained = explain_step(run, at, steps[at])
    if json:
        print_json(asdict(with_fewer(explained, rows)))
    else:
        show_step(run, explained, steps, terminal(), rows)


def rerun(
    run: Run,
    first: Annotated[int, typer.Option("--from", min=0, help="The first step to take again.")],
    last: Annotated[int, typer.Option("--to", min=0, help="The last one.")],
    without: Annotated[
        list[str] | None, typer.Option(help="Leave out a document (web:1234) or a source (web). May be repeated.")
    ] = None,
    bisect: Annotated[
        bool, typer.Option("--bisect", help="Find the documents behind a spike, by halving those of the steps.")
    ] = False,
    over: Annotated[
        float | None, typer.Option(help="With --bisect: a loss over this is the spike. By default as the guard judges.")
    ] = None,
    json: Json = False,
) -> None:
    """Take steps again from the nearest checkpoint, and compare. The run is not changed."""
    from trivium.why.compare import bisect_steps, rerun_steps

    if bisect and without:
        raise UsageError("rerun: --bisect finds what to leave out. Give it or --without.")
    if over is not None and not bisect:
        raise UsageError("rerun: --over says what a spike is to --bisect. Give both, or none.")
    console = terminal(stderr=json)
    found = (
        bisect_steps(run, first, last, over, console)
        if bisect
        else rerun_steps(run, first, last, without or [], console)
    )
    if json:
        print_json(found)

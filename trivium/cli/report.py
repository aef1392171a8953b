"""`trivium report`, `watch` and `compare`: a run's files shown as a page or as tables."""

from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from trivium.cli.options import Json, print_json
from trivium.screen import echo_line, terminal

RunFolders = Annotated[list[Path], typer.Argument(help="Folders of one or several runs.")]


def report(
    runs: RunFolders,
    out: Annotated[
        Path | None, typer.Option(help="The page. By default report.html in the first run's folder.")
    ] = None,
) -> None:
    """Write one HTML page that shows a run, or compares several."""
    from trivium.report.page import write_report

    echo_line(write_report(runs, out or runs[0] / "report.html"))


def watch(
    run: Annotated[Path, typer.Argument(help="A run's folder, or one that holds runs.")] = Path("runs"),
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 takes any that is free.")] = 8642,
) -> None:
    """Serve the page of a run, or of all runs of a folder, and update it. It answers this machine alone."""
    from trivium.report.watch import RunServer

    with RunServer(run, port) as server, suppress(KeyboardInterrupt):
        echo_line(f"{server.url} shows {run}; Ctrl-C ends it.")
        server.serve_forever()


def compare(runs: RunFolders, json: Json = False) -> None:
    """Show what each stage gained and forgot. Compares validation losses and scores before and after it."""
    from trivium.report.compare import compare_runs, show_changes

    changes = compare_runs(runs)
    if json:
        print_json([asdict(change) for change in changes])
    else:
        show_changes(changes, terminal())

"""`trivium train`, `rehearse`, `demo`, `fork` and `runs`: runs started, tried out, forked and listed."""

from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from trivium.cli.options import (
    INTERRUPTED,
    ConfigFile,
    Dialect,
    EveryStep,
    Overrides,
    Price,
    Quiet,
    RunOrCheckpoint,
    WorldSize,
    how_much,
)
from trivium.errors import STOPPED
from trivium.screen import Detail, detail, echo, echo_line, printing, terminal, under_way
from trivium.train.signals import start_up_signals


def train(
    config: ConfigFile,
    overrides: Overrides = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Train without writing checkpoints.")] = False,
    until: Annotated[
        str | None, typer.Option("--until", metavar="STAGE", help="End before this stage's first step, or this step.")
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option(min=1, help="Resume with this many rows in a step, to the end of the stage. The run keeps it."),
    ] = None,
    quiet: Quiet = False,
    verbose: EveryStep = False,
    dialect: Dialect = None,
    world_size: WorldSize = None,
) -> None:
    """Train a run, or resume it from its last checkpoint."""
    with start_up_signals(STOPPED), printing(how_much(quiet, verbose)):
        from trivium.plan.show import show_plan

        with under_way("importing the engine"):
            from trivium.train.trainer import Trainer

        trainer = Trainer(
            config,
            overrides or (),
            dialect=dialect,
            world_size=world_size,
            dry_run=dry_run,
            until=until,
            batch_size=batch_size,
        )
        if trainer.ranks.is_main and detail() is not Detail.QUIET:
            show_plan(trainer.plan, terminal(), trainer.loaded, verbose=verbose)
        trainer.run()
        if trainer.ranks.is_main and detail() is not Detail.QUIET and not dry_run:
            talks = any(source.kind == "chat" for source in trainer.config.sources.values())
            for line in next_lines(trainer.folder.path, finished=trainer.finished, talks=talks):
                echo_line(line)
    if not trainer.finished and not trainer.reached:
        raise typer.Exit(STOPPED)


def rehearse(
    config: ConfigFile,
    overrides: Overrides = None,
    price: Price = None,
    quiet: Quiet = False,
    dialect: Dialect = None,
    world_size: WorldSize = None,
) -> None:
    """Take two steps of each stage, in a scratch folder. At real shapes; evaluates, saves and loads too."""
    with printing(how_much(quiet)):
        with under_way("importing the engine"):
            from trivium.train.rehearse import rehearse_run

        rehearse_run(config, overrides or (), terminal(), dialect=dialect, world_size=world_size, price=price)


def next_lines(run: Path, *, finished: bool, talks: bool) -> list[str]:
    """What a user may type when a launch has ended."""
    folder = quote(str(run))
    commands = {} if finished else {"the same command": "goes on from the last checkpoint"}
    commands |= {
        f"trivium report {folder}": "writes a page that shows the run",
        f"trivium sample {folder}": "writes a text by the model",
    }
    if talks:
        commands[f"trivium chat {folder}"] = "talks to it"
    if finished:
        commands[f"trivium export {folder} exported"] = "writes it as a Hugging Face folder"
    width = max(map(len, commands))
    return ["next:", *(f"  {command:<{width}}  {what}" for command, what in commands.items())]


def demo(
    folder: Annotated[
        Path, typer.Option(help="The folder for texts, runs and the page. Files that it has are kept.")
    ] = Path("demo"),
    small: Annotated[bool, typer.Option("--small", hidden=True)] = False,
) -> None:
    """Train a small model in three stages, and show it on a page. It reads texts that every Python has."""
    from trivium.demo.demo import SMALL, DemoSize, run_demo

    try:
        finished = run_demo(folder, SMALL if small else DemoSize(), terminal())
    except KeyboardInterrupt:
        echo("\nStopped. The same command resumes here.")
        raise typer.Exit(INTERRUPTED) from None
    if not finished:
        raise typer.Exit(STOPPED)


def fork(
    run: RunOrCheckpoint,
    config: ConfigFile,
    overrides: Overrides = None,
    at: Annotated[int | None, typer.Option(min=0, help="The step of the checkpoint. By default the last one.")] = None,
    dialect: Dialect = None,
    world_size: WorldSize = None,
) -> None:
    """Start a new run from a checkpoint of another run."""
    from trivium.train.fork import fork_run

    echo_line(fork_run(run, at, config, overrides or (), dialect=dialect, world_size=world_size))


def runs(folder: Annotated[Path, typer.Argument(help="The folder that holds the runs.")] = Path("runs")) -> None:
    """List runs with their state, step, loss and last checkpoint."""
    from trivium.run.listing import list_runs, show_runs

    show_runs(list_runs(folder), terminal())

"""The command line: parse, call, print. What a command needs is imported when it runs."""

import errno
import io
import sys
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from trivium.cli import ask, tokenizer
from trivium.config import DIALECT_NAMES
from trivium.errors import TriviumError, UsageError

app = typer.Typer(
    help="Train language models in stages: one TOML file says what a model reads, and when.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.add_typer(tokenizer.app, name="tokenizer")
app.command()(ask.sample)
app.command()(ask.chat)


STOPPED = 3  # a run that was told to stop, and saved
INTERRUPTED = 130  # Ctrl-C where there is nothing to save
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # what a write says of a disk, a quota and a limit


ConfigFile = Annotated[Path, typer.Argument(help="A config: run.toml, or another tool's.", show_default=False)]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(help="Overrides, such as stages.0.tokens=1B or stages.long.seq_len=4096.", show_default=False),
]
DialectOption = Annotated[
    str | None,
    typer.Option(
        "--dialect",
        help="Whose config it is; else recognised by its tables.",
        metavar="|".join(("trivium", *DIALECT_NAMES)),
    ),
]
WorldSize = Annotated[
    int | None, typer.Option(min=1, help="Ranks, for configs of other tools that give a batch size per rank.")
]


@app.command()
def plan(
    config: ConfigFile,
    overrides: Overrides = None,
    json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
    html: Annotated[
        Path | None, typer.Option("--html", help="Write a page with the plan as a picture.", show_default=False)
    ] = None,
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
    made = make_plan(loaded.config, file=config.name)
    exported = {**plan_json(made), "notes": [str(note) for note in loaded.warnings]}
    if html is not None:
        import tomli_w

        from trivium.report.page import write_plan

        typer.echo(write_plan(exported, tomli_w.dumps(loaded.raw), html), err=json)
    if json:
        say_json(exported)
    elif html is None:
        show_plan(made, Console(soft_wrap=False), loaded.warnings)


@app.command()
def train(
    config: ConfigFile,
    overrides: Overrides = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Everything but write checkpoints.")] = False,
    dialect: DialectOption = None,
    world_size: WorldSize = None,
) -> None:
    """Train; a run that exists goes on from its last checkpoint."""
    from rich.console import Console

    from trivium.plan.show import show_plan
    from trivium.train.trainer import Trainer

    trainer = Trainer(config, overrides or (), dialect=dialect, world_size=world_size, dry_run=dry_run)
    if trainer.ranks.is_main:
        show_plan(trainer.plan, Console(), trainer.notes)
    trainer.run()
    if not trainer.finished:
        raise typer.Exit(STOPPED)


@app.command()
def demo(
    folder: Annotated[Path, typer.Option(help="Where everything goes; what is there is not made again.")] = Path(
        "demo"
    ),
    small: Annotated[bool, typer.Option("--small", hidden=True)] = False,
) -> None:
    """Train a small model through three stages on what every Python has, and show it on a page."""
    from rich.console import Console

    from trivium.demo.demo import SMALL, Size, run_demo

    try:
        finished = run_demo(folder, SMALL if small else Size(), Console())
    except KeyboardInterrupt:
        typer.echo("\nStopped. The same command goes on from here.")
        raise typer.Exit(INTERRUPTED) from None
    if not finished:
        raise typer.Exit(STOPPED)


@app.command()
def rehearse(
    config: ConfigFile, overrides: Overrides = None, dialect: DialectOption = None, world_size: WorldSize = None
) -> None:
    """Take two steps of every stage at its real shapes, evaluate, save and load, in a scratch folder."""
    from rich.console import Console

    from trivium.train.rehearse import rehearse_run

    rehearse_run(config, overrides or (), Console(), dialect=dialect, world_size=world_size)


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="Runs' folders; several are laid over one another.")],
    out: Annotated[
        Path | None, typer.Option(help="The page; else report.html in the first run's folder.", show_default=False)
    ] = None,
) -> None:
    """Write one HTML page that shows a run, or several beside one another."""
    from trivium.report.page import write_report

    typer.echo(write_report(runs, out or runs[0] / "report.html"))


@app.command()
def compare(
    runs: Annotated[list[Path], typer.Argument(help="Runs' folders; several stand beside one another.")],
    json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """Show what each stage gained and forgot: validation by source and scores, before and after it."""
    from rich.console import Console

    from trivium.report.compare import compare_json, compare_runs, show_changes

    changes = compare_runs(runs)
    if json:
        say_json(compare_json(changes))
    else:
        show_changes(changes, Console())


@app.command("eval")
def evaluate(
    model: Annotated[
        Path,
        typer.Argument(help="A run's folder, one of its checkpoints, or a Hugging Face folder.", show_default=False),
    ],
    tasks: Annotated[
        str, typer.Option(help="Such as spelling,counting; arc:ARC-Challenge=data/arc names a subset and its files.")
    ],
    questions: Annotated[int, typer.Option(min=1, help="Questions of each task.")] = 100,
    answer_tokens: Annotated[int, typer.Option(min=1, help="The longest answer.")] = 128,
    step: Annotated[int | None, typer.Option(min=0, help="Which checkpoint; else the last.")] = None,
    tokenizer: Annotated[
        str | None, typer.Option(help="A tokenizer.json, a folder, or bytes; else the model's own.", show_default=False)
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """Ask a checkpoint questions of tasks, and score its answers."""
    from rich.console import Console

    from trivium.ask.score_model import score_model, show_scores

    scored = score_model(model, tasks, questions, answer_tokens, step, tokenizer)
    if json:
        say_json(scored)
    else:
        show_scores(scored, Console())


@app.command()
def watch(
    run: Annotated[Path, typer.Argument(help="A run's folder.", show_default=False)],
    port: Annotated[int, typer.Option(min=0, max=65535, help="Where; 0 takes any that is free.")] = 8642,
) -> None:
    """Show a run's page while it goes on, to this machine alone."""
    from trivium.report.watch import RunServer

    with RunServer(run, port) as server, suppress(KeyboardInterrupt):
        typer.echo(f"{server.url} shows {run}; Ctrl-C ends it.")
        server.serve_forever()


@app.command()
def fork(
    run: Annotated[Path, typer.Argument(help="A run's folder, or one of its checkpoints.", show_default=False)],
    config: ConfigFile,
    overrides: Overrides = None,
    at: Annotated[int | None, typer.Option("--at", min=0, help="The step of the checkpoint; else the last.")] = None,
) -> None:
    """Start another run from a run's checkpoint, with another future."""
    from trivium.train.fork import fork_run

    typer.echo(fork_run(run, at, config, overrides or ()))


@app.command()
def runs(
    folder: Annotated[Path, typer.Argument(help="Where runs live.")] = Path("runs"),
) -> None:
    """List runs: how far each is, its last checkpoint, and what it was forked from."""
    from rich.console import Console

    from trivium.run.listing import list_runs, show_runs

    show_runs(list_runs(folder), Console())


@app.command()
def export(
    run: Annotated[Path, typer.Argument(help="A run's folder, or one of its checkpoints.", show_default=False)],
    out: Annotated[Path, typer.Argument(help="A folder that does not exist yet.", show_default=False)],
    step: Annotated[int | None, typer.Option(min=0, help="Which checkpoint; else the last.")] = None,
) -> None:
    """Write a checkpoint in Hugging Face form: weights, config.json, tokenizer and chat template."""
    from trivium.ask.export import export_checkpoint

    typer.echo(export_checkpoint(run, out, step))


@app.command()
def inspect(
    config: ConfigFile,
    overrides: Overrides = None,
    step: Annotated[int | None, typer.Option(min=0, help="The rows of this step.")] = None,
    row: Annotated[int | None, typer.Option(min=0, help="Only this row of the step.")] = None,
    source: Annotated[str | None, typer.Option(help="Only rows of this source.")] = None,
    document: Annotated[str | None, typer.Option(help="Where a document is read, such as web:1234.")] = None,
    find: Annotated[str | None, typer.Option(help="Documents that hold this text, and where they are read.")] = None,
    most: Annotated[int, typer.Option(min=1, help="With --find: how many documents are shown.")] = 20,
    full: Annotated[bool, typer.Option("--full", help="Whole documents, not their first tokens.")] = False,
    dialect: DialectOption = None,
    world_size: WorldSize = None,
) -> None:
    """Show what stands in the rows of a step, or the steps in which a document or a text is read."""
    from rich.console import Console

    from trivium.config.load import load
    from trivium.loader.show import show_hits, show_places, show_rows
    from trivium.loader.trace import places_of, rows_of, why_not_read
    from trivium.plan.make import make_plan
    from trivium.text.tokenizer import open_tokenizer

    if [step, document, find].count(None) != 2 or find == "":
        raise UsageError('inspect: give one of --step 41337, --document web:1234 and --find "some text".')
    config = config / "config.toml" if config.is_dir() else config
    made = make_plan(load(config, overrides or (), dialect=dialect, world_size=world_size).config, file=config.name)
    if document is not None:
        name, number = document_address(document)
        places = places_of(made, name, number)
        show_places(name, number, places, "" if places else why_not_read(made, name, number), Console())
    elif find is not None:
        tokenizer = open_tokenizer(made.config.tokenizer)
        if tokenizer is None:
            what = "--find needs the text of tokens, and the config has no [tokenizer]. Write tokenizer.kind and path."
            raise UsageError(f"inspect: {what}")
        show_hits(made, find, tokenizer, most, Console())
    elif step is not None:
        rows = [each for each in rows_of(made, step) if row in (None, each.row) and source in (None, each.source)]
        if not rows:
            there = made.stage_at(step)
            names = ", ".join(sorted(name for name, given in there.uses.items() if given.rows))
            limits = f"rows 0 to {there.batch_size - 1:,} of {names}"
            raise UsageError(f"inspect: step {step:,} of stage {there.name} has {limits}: none is as asked.")
        decoder = open_tokenizer(made.config.tokenizer)
        show_rows(step, made.stage_at(step), rows, decoder, Console(), full=full)


def document_address(text: str) -> tuple[str, int]:
    """`web:1234` -> the source and the document's number in it."""
    name, _, number = text.rpartition(":")
    if not name or not number.isdecimal():
        raise UsageError(f'--document: "{text}" is no document. Write its source and number, such as web:1234.')
    return name, int(number)


@app.command()
def verify(
    config: ConfigFile,
    overrides: Overrides = None,
    write: Annotated[bool, typer.Option("--write", help="Keep a manifest.json where a folder has none.")] = False,
    dialect: DialectOption = None,
    world_size: WorldSize = None,
) -> None:
    """Read all content of the token files again and compare it with their manifests."""
    from trivium.config.load import load
    from trivium.plan.inherit import inherited
    from trivium.sources.verify import verify_sources

    loaded = load(config, overrides or (), dialect=dialect, world_size=world_size)
    for line in verify_sources(inherited(loaded.config).config, config.name, write=write):
        typer.echo(line)


@app.command()
def prepare(
    what: Annotated[
        list[str],
        typer.Argument(help="A config and overrides; with --out: files and folders of text.", show_default=False),
    ],
    out: Annotated[Path | None, typer.Option(help="Where the token files go; else the cache folder.")] = None,
    tokenizer: Annotated[
        str | None, typer.Option(help="With --out: a tokenizer.json, a folder, or bytes.", show_default=False)
    ] = None,
    column: Annotated[str, typer.Option(help="With --out: where the text is, in JSONL and Parquet.")] = "text",
    add: Annotated[
        list[str] | None,
        typer.Option(help="With --out: bos, eos or none around each document; else eos where there is one, or bos."),
    ] = None,
    bad_lines: Annotated[
        float | None, typer.Option(min=0, max=1, help="The most lines that may hold no document, as a fraction.")
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes; else one for each core.")] = None,
    dialect: DialectOption = None,
    world_size: WorldSize = None,
) -> None:
    """Turn text into token files: all sources of a config, or files and folders into --out."""
    from trivium.sources.prepare_all import prepare_paths, prepare_sources

    if out is not None:
        typer.echo(prepare_paths(what, out, tokenizer, column, add, bad_lines, workers))
        return
    if tokenizer is not None or add:
        raise UsageError("prepare: --tokenizer and --add go with --out; a config has these in its tables.")
    from trivium.config.load import load
    from trivium.plan.inherit import inherited

    loaded = load(Path(what[0]), what[1:], dialect=dialect, world_size=world_size)
    for line in prepare_sources(inherited(loaded.config).config, Path(what[0]).name, bad_lines, workers):
        typer.echo(line)


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
    from trivium.config.schema import config_schema

    say_json(config_schema())


def say_json(value: object) -> None:
    """Print for machines."""
    import json

    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


def main() -> None:
    """Run a command; what a user can mend is one line each and exit code 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that cannot show a name shows a question mark
    try:
        app(prog_name="trivium")
    except TriviumError as error:
        typer.echo(str(error), err=True)
        sys.exit(2)
    except OSError as error:
        if error.filename is None and error.errno not in NO_ROOM:  # nothing that a user can mend
            raise
        typer.echo(f"{error.filename or 'writing'}: {error.strerror}", err=True)
        sys.exit(2)


if __name__ == "__main__":
    main()

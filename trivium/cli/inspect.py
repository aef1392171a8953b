"""`trivium inspect`: what a step reads, and which steps read a document or a text."""

from typing import TYPE_CHECKING, Annotated

import typer

from trivium.cli.options import ConfigFile, Dialect, Overrides, WorldSize
from trivium.errors import PlanError, UsageError
from trivium.screen import echo_line, terminal

if TYPE_CHECKING:
    from trivium.plan.plan import Plan


def inspect(
    config: ConfigFile,
    overrides: Overrides = None,
    step: Annotated[int | None, typer.Option(min=0, help="Show the rows of this step.")] = None,
    row: Annotated[int | None, typer.Option(min=0, help="With --step: only this row.")] = None,
    source: Annotated[str | None, typer.Option(help="With --step: only rows of this source.")] = None,
    document: Annotated[str | None, typer.Option(help="Show the steps that read a document, such as web:1234.")] = None,
    find: Annotated[
        str | None, typer.Option(help="Show documents with this text, and the steps that read them.")
    ] = None,
    most: Annotated[int, typer.Option(min=1, help="With --find: show at most this many documents.")] = 20,
    full: Annotated[bool, typer.Option("--full", help="Show whole documents, not their first tokens.")] = False,
    dialect: Dialect = None,
    world_size: WorldSize = None,
) -> None:
    """Show the rows of a step, or the steps that read a text."""
    from trivium.config.load import load
    from trivium.loader.show import show_hits, show_places
    from trivium.loader.trace import places_of, why_not_read
    from trivium.plan.make import make_plan
    from trivium.run.decisions import run_decisions, run_places
    from trivium.run.folder import RunFolder
    from trivium.text.tokenizer import open_tokenizer

    if [step, document, find].count(None) != 2 or find == "":
        raise UsageError('inspect: give one of --step 41337, --document web:1234 and --find "some text".')
    run = RunFolder(config) if config.is_dir() else None
    config = config if run is None else config / "config.toml"
    loaded = load(config, overrides or (), dialect=dialect, world_size=world_size)
    with loaded.places.named():
        places = run_places(loaded.config) if run is None else (run,)
        made = make_plan(loaded.config, decisions=run_decisions(*places))
        if document is not None:
            name, number = _document_address(document)
            _refuse_gaps(made, name)
            found = places_of(made, name, number)
            origin = made.sources[name].origin_of(number)
            if origin is not None:
                echo_line(f"document {number:,} of {name} is {origin}.")
            show_places(name, number, found, "" if found else why_not_read(made, name, number), terminal())
        elif find is not None:
            opened = open_tokenizer(made.config.tokenizer)
            if opened is None:
                what = "--find needs the text of tokens, and the config has no [tokenizer]"
                raise UsageError(f"inspect: {what}. Write tokenizer.kind and path.")
            _refuse_gaps(made, *made.config.sources)
            show_hits(made, find, opened, most, terminal())
        elif step is not None:
            _inspect_step(made, step, row, source, full=full)


def _inspect_step(plan: "Plan", step: int, row: int | None, source: str | None, *, full: bool) -> None:
    from trivium.loader.show import show_rows
    from trivium.loader.trace import rows_of
    from trivium.text.tokenizer import open_tokenizer

    stage = plan.stage_at(step)
    rows = [each for each in rows_of(plan, step) if row in (None, each.row) and source in (None, each.source)]
    if not rows:
        names = ", ".join(sorted(name for name, use in stage.uses.items() if use.rows))
        limits = f"rows 0 to {stage.size_at(step) - 1:,} of {names}"
        options = {"--row": row, "--source": source}
        asked = " and ".join(f"{option} {value}" for option, value in options.items() if value is not None)
        raise UsageError(f"inspect: step {step:,} of stage {stage.name} has {limits}: none matches {asked}.")
    show_rows(step, stage, rows, open_tokenizer(plan.config.tokenizer), terminal(), full=full)


def _refuse_gaps(plan: "Plan", *names: str) -> None:
    """Refuse to search sources that have no token files yet."""
    gaps = [gap for gap in plan.gaps if gap.where in {f"sources.{name}" for name in names}]
    if gaps:
        raise PlanError(gaps)


def _document_address(text: str) -> tuple[str, int]:
    """`web:1234` -> the source and the document's number in it."""
    name, _, number = text.rpartition(":")
    if not name or not number.isdecimal():
        raise UsageError(f'--document: "{text}" is not a document. Write its source and number, such as web:1234.')
    return name, int(number)

"""The command line: the commands of every group in one app, and errors turned into messages and exit codes.

A command parses, calls and prints. What it needs is imported when it runs, so that `trivium --help` costs little.
"""

import errno
import io
import sys
from collections.abc import Callable
from importlib.metadata import version
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperGroup

from trivium.cli import ask, average, init, inspect, plan, prepare, prove, publish, report, train, why
from trivium.engine.ranks import end_process, launched_ranks
from trivium.errors import FAILED, ProblemsError, RankError, SilentRankError, TriviumError, exit_code
from trivium.screen import echo, echo_line

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # a full disk, a quota, a limit on the size of a file


class Command(NamedTuple):
    """What a command calls, and an example of it."""

    call: Callable[..., None]
    example: str


# In the order of use.
GROUPS: dict[str, dict[str, Command]] = {
    "Start": {
        "quickstart": Command(init.quickstart, "trivium quickstart my-texts"),
        "init": Command(init.init, "trivium init my-texts"),
        "examples": Command(init.examples, "trivium examples --list"),
        "demo": Command(train.demo, "trivium demo"),
    },
    "Data": {
        "prepare": Command(prepare.prepare, "trivium prepare run.toml"),
        "verify": Command(prepare.verify, "trivium verify run.toml"),
    },
    "Before a run": {
        "convert": Command(plan.convert, "trivium convert torchtitan.toml --world-size 8 > run.toml"),
        "schema": Command(plan.schema, "trivium schema > trivium.schema.json"),
        "plan": Command(plan.plan, "trivium plan run.toml --on 64xH100"),
        "check": Command(plan.check, "trivium check run.toml --ranks 64"),
        "rehearse": Command(train.rehearse, "trivium rehearse run.toml"),
        "prove": Command(prove.prove, "trivium prove run.toml"),
    },
    "Runs": {
        "train": Command(train.train, "trivium train run.toml"),
        "fork": Command(train.fork, "trivium fork runs/base --at 4000 new.toml"),
        "runs": Command(train.runs, "trivium runs"),
        "watch": Command(report.watch, "trivium watch runs/base"),
        "report": Command(report.report, "trivium report runs/base"),
        "compare": Command(report.compare, "trivium compare runs/base runs/other"),
        "inspect": Command(inspect.inspect, "trivium inspect run.toml --step 4000"),
        "why": Command(why.why, "trivium why runs/base --step 4000"),
        "rerun": Command(why.rerun, "trivium rerun runs/base --from 4000 --to 4010 --without web:1234"),
    },
    "Models": {
        "sample": Command(ask.sample, 'trivium sample runs/base --prompt "Once upon a time"'),
        "chat": Command(ask.chat, "trivium chat --web runs/base runs/other@4000"),
        "eval": Command(ask.evaluate, "trivium eval runs/base --tasks spelling"),
        "export": Command(publish.export, "trivium export runs/base exported"),
        "push": Command(publish.push, "trivium push runs/base me/base"),
        "inspect-model": Command(ask.inspect_model, "trivium inspect-model runs/base"),
        "average": Command(average.average, "trivium average runs/base@4000 runs/base@5000 --out averaged"),
    },
}
TOKENIZER = "tokenizer"  # has commands of its own


class GroupedCommands(TyperGroup):
    """Help that lists commands by their group."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        listed = {title: list(commands) for title, commands in GROUPS.items()}
        listed["Data"].insert(0, TOKENIZER)
        room = formatter.width - 6 - max(len(name) for names in listed.values() for name in names)
        for title, names in listed.items():
            found = {name: self.get_command(ctx, name) for name in names}
            lines = [(name, each.get_short_help_str(room)) for name, each in found.items() if each is not None]
            with formatter.section(title):
                formatter.write_dl(lines)


app = typer.Typer(
    cls=GroupedCommands,
    help="Train language models in stages: one TOML file says what a model reads, and when.",
    epilog="\b\nExample:\n  trivium quickstart my-texts",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for commands in GROUPS.values():
    for name, command in commands.items():
        app.command(name, epilog=f"\b\nExample:\n  {command.example}")(command.call)
app.add_typer(prepare.tokenizer, name=TOKENIZER)


def _print_version(asked: bool) -> None:
    if asked:
        echo_line(f"trivium {version('trivium')}")
        raise typer.Exit


@app.callback()
def options(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """What every command may be given."""


def main() -> None:
    """Run a command. An error that a user can fix is printed without a traceback, and the exit code is 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that cannot show a name shows a question mark
    try:
        app(prog_name="trivium")
    except Exception as error:
        code = report_error(error)
        if launched_ranks() > 1:
            end_process(code)
        sys.exit(code)


def report_error(error: Exception) -> int:
    """Print what went wrong, with a traceback where a user cannot fix it; gives the exit code."""
    if isinstance(error, TriviumError):
        _tell(error)
        return exit_code(error)
    if isinstance(error, OSError) and (error.filename is not None or error.errno in NO_ROOM):
        echo_line(f"{error.filename or 'writing'}: {error.strerror}", err=True)
        return FAILED
    sys.excepthook(type(error), error, error.__traceback__)
    return 1


def _tell(error: TriviumError) -> None:
    """Print an error: each of its problems is one message."""
    if isinstance(error, SilentRankError):
        return
    if isinstance(error, RankError):  # it quotes another rank's error, which may be several messages
        echo(error, err=True)
        return
    for message in error.problems if isinstance(error, ProblemsError) else (error,):
        echo_line(message, err=True)


if __name__ == "__main__":
    main()

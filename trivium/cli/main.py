"""The command line: the commands of every group in one app, and errors turned into messages and exit codes.

A command parses, calls and prints. What it needs is imported when it runs, so that `trivium --help` costs little.
"""

import errno
import io
import sys
from collections.abc import Callable

import typer

from trivium.cli import ask, average, inspect, plan, prepare, prove, report, train
from trivium.engine.ranks import end_process, launched_ranks
from trivium.errors import FAILED, ProblemsError, RankError, SilentRankError, TriviumError, exit_code
from trivium.screen import echo, echo_line

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # a full disk, a quota, a limit on the size of a file

app = typer.Typer(
    help="Train language models in stages: one TOML file says what a model reads, and when.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
COMMANDS: dict[str, Callable[..., None]] = {
    "plan": plan.plan,
    "check": plan.check,
    "train": train.train,
    "rehearse": train.rehearse,
    "prove": prove.prove,
    "demo": train.demo,
    "fork": train.fork,
    "runs": train.runs,
    "report": report.report,
    "watch": report.watch,
    "compare": report.compare,
    "sample": ask.sample,
    "chat": ask.chat,
    "eval": ask.evaluate,
    "export": ask.export,
    "inspect-model": ask.inspect_model,
    "average": average.average,
    "prepare": prepare.prepare,
    "verify": prepare.verify,
    "inspect": inspect.inspect,
    "convert": plan.convert,
    "schema": plan.schema,
}
for name, command in COMMANDS.items():
    app.command(name)(command)
app.add_typer(prepare.tokenizer, name="tokenizer")


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

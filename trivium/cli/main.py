"""The command line: the commands of every group in one app, and errors turned into messages and exit codes.

A command parses, calls and prints. What it needs is imported when it runs, so that `trivium --help` costs little.
"""

import errno
import io
import sys
from collections.abc import Callable

import typer

from trivium.cli import ask, inspect, plan, prepare, report, train
from trivium.cli.options import STOPPED
from trivium.errors import SilentRankError, StoppedError, TriviumError
from trivium.screen import echo

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
    "train": train.train,
    "rehearse": train.rehearse,
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
    except SilentRankError:
        sys.exit(2)
    except TriviumError as error:
        echo(str(error), err=True)
        sys.exit(STOPPED if isinstance(error, StoppedError) else 2)
    except OSError as error:
        if error.filename is None and error.errno not in NO_ROOM:  # a user cannot fix it
            raise
        echo(f"{error.filename or 'writing'}: {error.strerror}", err=True)
        sys.exit(2)


if __name__ == "__main__":
    main()

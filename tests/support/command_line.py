"""The command line within this process: what it gives and prints, without the second that a new one takes to start."""

import contextlib
import io
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from unittest import mock

from trivium.cli.main import main


def trivium(
    folder: Path, *arguments: str, stdin: str = "", environment: Mapping[str, str] | None = None
) -> tuple[int, str, str]:
    """The exit code and what goes to each stream, in a folder, before something that is 80 columns wide."""
    out, err = io.StringIO(), io.StringIO()
    with (
        contextlib.chdir(folder),
        mock.patch.object(sys, "argv", ["trivium", *arguments]),
        mock.patch.object(sys, "stdin", io.StringIO(stdin)),
        mock.patch.dict(os.environ, {"COLUMNS": "80", **(environment or {})}),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            main()
            code = 0
        except SystemExit as ended:
            code = int(ended.code or 0)
    return code, out.getvalue(), err.getvalue()

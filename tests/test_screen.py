"""What is printed has no control characters and no markup of whoever wrote a name or a document."""

import io
import json
from pathlib import Path

import pytest
from rich.progress import Progress, TextColumn
from rich.table import Table
from rich.text import Text

from tests.support.command_line import trivium
from trivium.run.listing import RunState, show_runs
from trivium.screen import echo, printable, terminal

HOSTILE = "\x1b]0;owned\x07\x1b[2Ja\rb\x9b1m\u202etxt.exe [/bold] [link=x] :smile:"
SHOWN = "\\u001b]0;owned\\u0007\\u001b[2Ja\\u000db\\u009b1m\\u202etxt.exe [/bold] [link=x] :smile:"


def test_control_characters_are_shown_and_lines_stay() -> None:
    assert printable(HOSTILE) == SHOWN
    assert printable("ä\tb\n") == "ä\tb\n"
    assert json.loads(printable(json.dumps({"a": HOSTILE}, ensure_ascii=False))) == {"a": HOSTILE}


def test_a_line_has_none(capsys: pytest.CaptureFixture[str]) -> None:
    echo(HOSTILE)
    echo(HOSTILE, err=True, end="")
    assert capsys.readouterr() == (f"{SHOWN}\n", SHOWN)


def test_tables_and_texts_have_none() -> None:
    console = terminal()
    console.file, console.width = io.StringIO(), 200
    table = Table(box=None)
    table.add_column(HOSTILE)
    table.add_row(HOSTILE)
    console.print(table, Text(HOSTILE), HOSTILE)
    shown = console.file.getvalue()
    assert shown.count("[/bold] [link=x] :smile:") == 4
    assert "\x1b" not in shown.replace("\n", "")
    assert "\u202e" not in shown


def test_a_bar_has_none() -> None:
    console = terminal()
    console.file = io.StringIO()
    with Progress(TextColumn("{task.description}", markup=False), console=console) as bar:
        bar.add_task(HOSTILE)
    assert console.file.getvalue().startswith("\\u001b]0;owned")


def test_runs_with_any_name_are_listed() -> None:
    console = terminal()
    console.file, console.width = io.StringIO(), 300
    show_runs([RunState(HOSTILE, "new", 0, None, HOSTILE, None, None, "")], console)
    assert console.file.getvalue().count("[/bold]") == 2


def test_an_error_has_none(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text('[run]\n"\\u001b[2J" = 1\n')
    code, _, told = trivium(tmp_path, "plan", "run.toml")
    assert code == 2
    assert "\x1b" not in told
    assert "\\u001b" in told

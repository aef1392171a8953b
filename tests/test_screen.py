"""What is printed has no control characters and no markup of whoever wrote a name or a document."""

import io
import json
import threading
from pathlib import Path

import pytest
from rich.progress import Progress, TextColumn
from rich.table import Table
from rich.text import Text

from tests.support.command_line import trivium
from trivium import screen
from trivium.run.listing import RunState, show_runs
from trivium.screen import (
    Detail,
    echo,
    echo_line,
    one_line,
    printable,
    printing,
    shown_in,
    terminal,
    under_way,
)

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


def test_a_text_that_grows_by_its_escapes_keeps_all_its_letters() -> None:
    console = terminal()
    console.file, console.width = io.StringIO(), 40
    words = " ".join(f"\x1b[{number}mword{number}" for number in range(12))
    table = Table(box=None)
    table.add_column("name", overflow="fold")
    table.add_row(Text(words))
    console.print(Text(words), table)
    shown = console.file.getvalue()
    assert all(len(line) <= 40 for line in shown.splitlines())
    for number in range(12):
        assert "".join(shown.split()).count(f"\\u001b[{number}mword{number}") == 2


def test_a_line_end_of_a_name_is_shown_and_a_messages_own_stays(capsys: pytest.CaptureFixture[str]) -> None:
    assert one_line("a\nfinished: b") == "a\\u000afinished: b"
    echo_line("run.toml: is not valid TOML.\n    lr = = 3\n         ^", err=True)
    echo_line("web\n\nstep 10: saved")
    told = capsys.readouterr()
    assert told.err == "run.toml: is not valid TOML.\n    lr = = 3\n         ^\n"
    assert told.out == "web\\u000a\\u000astep 10: saved\n"


def test_a_bar_has_none() -> None:
    console = terminal()
    console.file = io.StringIO()
    with Progress(TextColumn("{task.description}", markup=False), console=console) as bar:
        bar.add_task(HOSTILE)
    assert console.file.getvalue().startswith("\\u001b]0;owned")


def test_runs_with_any_name_are_listed() -> None:
    console = terminal()
    console.file, console.width = io.StringIO(), 300
    show_runs([RunState(f"{HOSTILE}\nfinished", "new", 0, None, HOSTILE, None, None, (), "")], console)
    shown = console.file.getvalue()
    assert shown.count("[/bold]") == 2
    assert shown.count("\n") == 2
    assert "\\u000afinished" in shown


def test_an_error_has_none(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text('[run]\n"\\u001b[2J" = 1\n')
    code, _, told = trivium(tmp_path, "plan", "run.toml")
    assert code == 2
    assert "\x1b" not in told
    assert "\\u001b" in told


NAMED = """
[run]
name = "run"
[model]
layers = 1
width = 32
heads = 2
[tokenizer]
kind = "bytes"
[sources.web]
kind = "text"
path = "{path}"
[[stages]]
name = "one"
steps = 2
seq_len = 16
batch_size = 2
mixture = {{ web = 1.0 }}
"""


def test_a_file_name_forges_no_line(tmp_path: Path) -> None:
    name = "a\x1b[2J\nfinished: all is well" + " and so on" * 8
    written = json.dumps(f"{name}.jsonl")[1:-1]
    (tmp_path / "run.toml").write_text(NAMED.format(path=written))
    code, _, told = trivium(tmp_path, "prepare", "run.toml")
    assert code == 2
    assert told.count("\n") == 1
    assert "a\\u001b[2J\\u000afinished" in told
    (tmp_path / f"{name}.jsonl").write_text('{"text": "some words"}\n')
    code, shown, told = trivium(tmp_path, "plan", "run.toml")
    assert code == 0
    assert "\\u000afinished:allis" in "".join(shown.split())
    assert not [line for line in (shown + told).splitlines() if line.startswith("finished")]


def test_what_is_under_way_is_a_line_in_a_pipe(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = threading.Event()
    monkeypatch.setattr(screen._OnItsOwn, "LINE_SECONDS", 0.0)
    line = screen.echo_line

    def noted(text: object, *, err: bool = False) -> None:
        line(text, err=err)
        shown.set()

    monkeypatch.setattr(screen, "echo_line", noted)
    with under_way("packing rows of web") as done:
        assert shown.wait(60)
        done(0.5)
        with under_way("within another"):
            pass
    assert capsys.readouterr() == ("", "packing rows of web ...\n")


def test_what_is_over_at_once_is_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with under_way("quick"):
        pass
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("reason", ["quiet", "another rank", "another thread"])
def test_some_show_nothing(reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def look() -> None:
        with shown_in(lambda what, part: calls.append(what)), under_way("packing"):
            pass

    if reason == "quiet":
        with printing(Detail.QUIET):
            look()
    elif reason == "another rank":
        monkeypatch.setenv("RANK", "3")
        look()
    else:
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
    assert calls == []


def test_a_live_view_shows_what_is_under_way_and_that_it_is_over() -> None:
    calls: list[tuple[str, float | None]] = []
    with shown_in(lambda what, part: calls.append((what, part))), under_way("packing") as done:
        done(0.25)
    assert calls == [("packing", None), ("packing", 0.25), ("", None)]

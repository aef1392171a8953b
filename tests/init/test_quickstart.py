"""`trivium quickstart`: from a folder to a report, stopped and taken up again."""

from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from tests.init.conftest import prose
from trivium.errors import UsageError
from trivium.init import quickstart as module
from trivium.init.quickstart import Quickstart, run_quickstart


@pytest.fixture
def asked(mixed: Path, tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Quickstart:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return Quickstart(mixed, Path("run.toml"), minutes=0.02)


@pytest.mark.slow
def test_a_folder_becomes_a_report_and_the_same_command_goes_on(
    asked: Quickstart, monkeypatch: pytest.MonkeyPatch
) -> None:
    console = Console(record=True, width=120)
    with monkeypatch.context() as stopped:
        stopped.setattr(module, "_prepare", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            run_quickstart(asked, console)
    written = asked.out.read_bytes()
    assert run_quickstart(asked, console)  # the same command goes on
    again = Quickstart(asked.folder, asked.out)
    assert asked.out.read_bytes() == written
    assert (asked.run / "report.html").is_file()
    shown = console.export_text()
    commands = [line.removeprefix("$ ") for line in shown.splitlines() if line.startswith("$ ")]
    assert commands == [
        f"trivium init {asked.folder} --out run.toml --minutes 0.02",
        "trivium prepare run.toml",
        "trivium plan run.toml",
        "trivium train run.toml",
        "trivium report runs/mixed",
    ]
    assert run_quickstart(again, console)  # of a finished run: the report alone


def test_a_config_of_another_hand_or_folder_is_kept(asked: Quickstart, tmp_path: Path) -> None:
    asked.out.write_text("[run]\n")
    with pytest.raises(UsageError) as caught:
        run_quickstart(asked, Console())
    assert str(caught.value) == (
        "--out: run.toml exists, and another hand wrote it. Name another file: --out mixed.toml."
    )
    asked.out.write_text("# Written by trivium init for /elsewhere.\n")
    with pytest.raises(UsageError, match="it is the config of /elsewhere"):
        run_quickstart(asked, Console())
    asked.out.write_text(f"# Written by trivium init for {asked.folder.resolve()}.\n")
    with pytest.raises(UsageError, match="exists, and was written without these options"):
        run_quickstart(asked, Console())


def test_other_options_than_those_of_the_config_are_refused(asked: Quickstart, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_prepare", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        run_quickstart(asked, Console())
    for given in (asked, replace(asked, minutes=None)):
        with pytest.raises(KeyboardInterrupt):
            run_quickstart(given, Console())
    for given in (replace(asked, minutes=3), replace(asked, tokenizer="bytes")):
        with pytest.raises(UsageError, match="exists, and was written without these options"):
            run_quickstart(given, Console())


def test_commands_can_be_typed_as_they_are_shown(
    mixed: Path, asked: Quickstart, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = mixed.rename(mixed.with_name("my texts [bold] 2."))
    monkeypatch.setattr(module, "_prepare", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    console = Console(record=True, width=300)
    given = replace(asked, folder=odd, out=Path("my run.toml"))
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            run_quickstart(given, console)
    command = f"$ trivium init '{odd}' --out 'my run.toml' --minutes 0.02"
    shown = console.export_text().splitlines()
    assert command in shown
    assert shown[-1] == "my run.toml exists: kept, with all that was done"
    assert "#   trivium train 'my run.toml', then" in given.out.read_text()


@pytest.mark.slow
def test_a_folder_of_few_documents_has_its_report_too(asked: Quickstart, tmp_path: Path) -> None:
    (tmp_path / "few").mkdir()
    (tmp_path / "few" / "[red] book.txt").write_text(prose(1, 20_000))
    console = Console(record=True, width=120)
    given = replace(asked, folder=tmp_path / "few")
    assert run_quickstart(given, console)
    assert "validation = " not in given.out.read_text()
    shown = console.export_text()
    assert f"open    {(given.run / 'report.html').resolve().as_uri()}" in shown.replace("\n", "")
    assert "change  run.toml, then trivium train run.toml run.name=second" in shown

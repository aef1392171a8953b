"""The demo in a small setting: stopped in its middle, it resumes, and its page is drawn."""

import io
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser
from rich.console import Console

from tests.support.browser import until
from tests.support.command_line import trivium
from tests.support.events import steps_taken
from trivium.config.load import load
from trivium.demo.demo import SMALL, DemoSize, run_demo, write_config
from trivium.report.compare import compare_runs
from trivium.run.events import read_events


@pytest.mark.parametrize("size", [DemoSize(), SMALL], ids=["whole", "small"])
def test_the_config_is_sound_and_stays_as_it_was_changed(size: DemoSize, tmp_path: Path) -> None:
    path = tmp_path / 'a "quoted" folder' / "demo.toml"
    write_config(path, size)
    loaded = load(path)
    assert loaded.warnings == ()
    assert loaded.config.run.folder == f"{path.parent.as_posix()}/runs"
    assert [stage.name for stage in loaded.config.stages] == ["general", "long", "talk"]
    path.write_text(path.read_text() + "# mine\n")
    write_config(path, size)
    assert path.read_text().endswith("# mine\n")


def test_a_demo_that_was_copied_is_refused(tmp_path: Path) -> None:
    write_config(tmp_path / "one" / "demo.toml", SMALL)
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    message = (
        "two/demo.toml: has the paths of another folder, from where it was moved or copied. Give --folder a new one.\n"
    )
    assert trivium(tmp_path, "demo", "--small", "--folder", "two") == (2, "", message)


def test_the_config_holds_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_config(Path("demo/demo.toml"), SMALL)
    assert load(Path("demo/demo.toml")).config.run.folder == f"{tmp_path.resolve().as_posix()}/demo/runs"


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    folder = tmp_path / "file" / "demo"
    message = f"--folder: {folder} cannot be created: Not a directory. Name another.\n"
    assert trivium(tmp_path, "demo", "--small", "--folder", str(folder)) == (2, "", message)


def test_ctrl_c_before_training_says_what_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("trivium.demo.demo.write_texts", interrupted)
    code, out, _ = trivium(tmp_path, "demo", "--small", "--folder", "demo")
    assert code == 130
    assert out.endswith("\nStopped. The same command resumes here.\n")


def stopped_demo(folder: Path) -> tuple[int, str]:
    """Start the demo as people do, press Ctrl-C in its second stage; how it ended and what it said."""
    command = [sys.executable, "-m", "trivium", "demo", "--small", "--folder", str(folder)]
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    ) as process:
        assert process.stdout is not None
        said = ""
        for line in process.stdout:
            said += line
            if line.startswith("step 14 "):
                process.send_signal(signal.SIGINT)
        return process.wait(), said


def page_commands() -> list[str]:
    """The commands for its folder that the page on the first run shows."""
    page = (Path(__file__).parents[2] / "docs" / "first-run.md").read_text(encoding="utf-8")
    return re.findall(r"^(trivium .*?) *(?:#.*)?$", page, re.MULTILINE)


def events_of(run: Path, kind: str) -> list[dict[str, Any]]:
    return [event for event in read_events(run / "events.jsonl") if event["event"] == kind]


@pytest.mark.slow
def test_a_stopped_demo_goes_on_and_ends_with_a_page(tmp_path: Path, browser: Browser) -> None:
    folder, run = tmp_path / "demo", tmp_path / "demo" / "runs" / "demo"
    code, said = stopped_demo(folder)
    assert code == 3, said
    assert said.endswith("Stopped, and saved. The same command resumes here.\n")
    assert 14 <= max(steps_taken(run / "events.jsonl")) < 32
    assert not (folder / "report.html").exists()

    told = io.StringIO()
    assert run_demo(folder, SMALL, Console(file=told, width=200))
    assert "== Texts" not in told.getvalue()  # they are there
    assert f"open {(folder / 'report.html').as_uri()}\n" in told.getvalue()
    assert sorted(steps_taken(run / "events.jsonl")) == list(range(1, 33))
    assert "== What each stage gained and forgot" in told.getvalue()
    assert all(set(event["scores"]) == {"spelling", "counting"} for event in events_of(run, "scored"))
    assert {event["step"] for event in events_of(run, "sampled")} == {0, 12, 20, 32}
    changes = compare_runs([run])
    assert [each.stage for each in changes] == ["general", "long", "talk"]
    for stage in changes:
        assert set(stage.sources) == {"code", "prose", "spell-test", "count-test", "sums"}
        for name, figures in stage.sources.items():
            change = figures["bits_per_byte"].change
            assert change is not None
            assert change < -0.03, f"{stage.stage}: {name}"

    page, complaints, requests = browser.new_page(), [], []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    page.goto((folder / "report.html").as_uri())
    until(page, "window.report !== undefined")
    assert complaints == []
    assert requests == [(folder / "report.html").as_uri()]
    drawn = page.evaluate("[...report.views].map(([id, view]) => [id, view.chart.series.map(({ label }) => label)])")
    charts = dict(drawn)
    assert {"code", "prose", "spelling", "counting", "sums"} <= set(charts["plan-shares-0"])
    assert {"code", "prose", "spell-test", "count-test", "sums"} <= set(charts["validation-bpb"])
    assert {"spelling", "counting"} <= set(charts["scores"])
    assert all(charts.values())
    assert page.locator("#texts pre").count() == len(events_of(run, "sampled"))
    page.close()

    commands = page_commands()
    assert len(commands) == 7
    for command in commands:
        code, _, err = trivium(tmp_path, *shlex.split(command)[1:])
        assert code == 0, f"{command}: {err}"

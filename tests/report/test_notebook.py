"""Plans, loaders and reports in a notebook: they show themselves, escaped, and write nothing unless asked."""

from html import unescape
from pathlib import Path

import pytest
from playwright.sync_api import Browser

import trivium
from tests.support.browser import until
from tests.support.runs import WrittenRun
from tests.support.training import write_four_stages
from trivium.errors import ConfigError, UsageError
from trivium.report.notebook import ShownReport


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_four_stages(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_plan_of_a_path_shows_what_the_command_prints(folder: Path) -> None:
    plan = trivium.make_plan("run.toml")
    assert plan.fingerprint(5) == trivium.make_plan(trivium.load_config("run.toml")).fingerprint(5)
    shown = plan._repr_html_()
    assert shown.startswith("<pre")
    assert "run: 4 stages, " in shown
    with pytest.raises(ConfigError, match=r"gone.toml: no such file."):
        trivium.make_plan("gone.toml")


def test_a_loader_shows_where_it_stands(folder: Path) -> None:
    with trivium.Loader(trivium.make_plan(folder / "run.toml"), prefetch=0) as loader:
        next(iter(loader))
        total = len(loader)
        assert repr(loader) == f"Loader of run: rank 0 of 1, at step 1 of {total} (stage one, 8 rows of 16)"
        shown = loader._repr_html_()
        loader.seek(total, {})
        assert f"at step {total} of {total} (stage " in repr(loader)
    assert "at step 1 of" in shown
    assert "run: 4 stages, " in shown


def test_a_name_is_no_markup_in_a_notebook(folder: Path) -> None:
    config = trivium.load_config("run.toml", ["stages.one.name='<b>&one'"])
    shown = trivium.make_plan(config)._repr_html_()
    assert "<b>" not in shown
    assert "&lt;b&gt;&amp;one" in shown


def test_a_report_writes_nothing_unless_asked(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path / "run")
    run.start()
    run.take(0, 5)
    before = sorted(tmp_path.rglob("*"))
    shown = trivium.report(run.folder, height=500)
    assert isinstance(shown, ShownReport)
    frame = shown._repr_html_()
    assert sorted(tmp_path.rglob("*")) == before
    assert repr(shown) == "<report of made; write(path) keeps it as a file>"
    assert "height: 500px" in frame
    assert unescape(frame.split('srcdoc="')[1].split('" sandbox')[0]) == shown.page
    assert shown.write(tmp_path / "page.html").read_text() == shown.page
    with pytest.raises(UsageError, match=r'report: no run is given. Write trivium.report\("runs/small"\).'):
        trivium.report()


@pytest.mark.slow
def test_the_page_is_drawn_in_its_frame(tmp_path: Path, browser: Browser) -> None:
    run = WrittenRun(tmp_path / "run")
    run.start()
    run.take(0, 20)
    notebook = tmp_path / "notebook.html"
    notebook.write_text(f"<!doctype html><body>{trivium.report(run.folder)._repr_html_()}</body>")
    page = browser.new_page()
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(notebook.as_uri())
    until(page, "frames.length === 1")
    (frame,) = page.frames[1:]
    frame.locator("#block-loss canvas").wait_for()
    assert frame.locator("#block-loss .legend .name").all_inner_texts() == ["loss", "running mean"]
    assert complaints == []
    page.close()

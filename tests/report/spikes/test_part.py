"""Spikes on a page: clicked in the list or in a chart, with rows, documents, text, and what leaves them out."""

from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.support.browser import until
from tests.support.pages import data_in
from tests.support.runs import BREAKS_OUT, WrittenRun
from trivium.report.page import page_data, write_report
from trivium.report.read import RunFiles
from trivium.report.run import shown_runs
from trivium.report.spikes.part import MOST_PIECES, MOST_ROWS, MOST_SPIKES
from trivium.report.watch import RunServer
from trivium.run.events import Skipped, Spiked
from trivium.run.folder import RunFolder


def kept_row(row: int, loss: float | str | None, *documents: int, text: str = "some text") -> dict[str, Any]:
    """A row as the loop writes it down."""
    pieces = [{"file": "a.ds", "document": each, "start": 0, "stop": 31, "text": text} for each in documents]
    return {"row": row, "source": "web", "epoch": 0, "pieces": pieces, "unknown": None, "loss": loss}


def spiky_run(folder: Path, spikes: int = 1) -> WrittenRun:
    run = WrittenRun(folder, 300)
    run.start()
    run.take(0, 200)
    rows = [kept_row(0, 2.0, 5), kept_row(1, 9.25, 812, 97, text=f"garbage {BREAKS_OUT}"), kept_row(2, 2.1, 4)]
    rows += [kept_row(number, 2.05, *range(20)) for number in range(3, 12)]
    for number in range(spikes):
        name = RunFolder(folder).write_rows(153 - number, rows)
        run.tell(Spiked(step=154 - number, stage="long", loss=4.5, limit=3.2, rows=name))
    bad = RunFolder(folder).write_rows(155, [kept_row(0, 2.0, 1), kept_row(1, "nan", 3), kept_row(2, 2.0, 2)])
    run.tell(Skipped(step=156, stage="long", why="the loss is nan", rows=bad))
    run.tell(Skipped(step=160, stage="long", why="its rows are skipped (guard.skip_steps)"))
    return run


def spikes_in(folder: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = page_data(shown_runs([RunFiles(folder)]))["runs"][0]["spikes"]
    return found


def test_a_spike_has_its_rows_by_loss_and_the_key_that_leaves_them_out(tmp_path: Path) -> None:
    spike, skipped = spikes_in(spiky_run(tmp_path / "made").folder)
    assert (spike["step"], spike["update"], spike["what"]) == (153, 154, "loss 4.5000, over 3.2000")
    assert [row["loss"] for row in spike["rows"][:3]] == ["9.2500", "2.1000", "2.0500"]
    assert [piece["name"] for piece in spike["rows"][0]["pieces"]] == ["web:812", "web:97"]
    assert spike["rows"][0]["pieces"][0]["text"] == f"garbage {BREAKS_OUT}"
    assert spike["lines"] == ["[sources.web]", "without = [97, 812]"]
    assert spike["commands"][1][1].endswith("--from 153 --to 157 --without web:812 --without web:97")
    assert (skipped["rows"][0]["loss"], skipped["lines"]) == ("nan", ["[sources.web]", "without = [3]"])


def test_a_page_stays_small_whatever_was_kept(tmp_path: Path) -> None:
    found = spikes_in(spiky_run(tmp_path / "made", spikes=MOST_SPIKES + 20).folder)
    assert len(found) == MOST_SPIKES
    assert found[-1]["step"] == 155
    assert {len(spike["rows"]) for spike in found[:-1]} == {MOST_ROWS}
    assert found[0]["more"] == 12 - MOST_ROWS
    assert max(len(row["pieces"]) for row in found[0]["rows"]) == MOST_PIECES


def test_rows_of_an_earlier_version_have_no_losses(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path / "made", 300)
    run.start()
    run.take(0, 160)
    rows = [{"source": "web", "pieces": [{"document": 4}]}]
    run.tell(Spiked(step=155, stage="long", loss=9.5, limit=3.2, rows=RunFolder(run.folder).write_rows(154, rows)))
    (spike,) = spikes_in(run.folder)
    assert spike["rows"] == [
        {"row": 0, "source": "web", "loss": "", "pieces": [{"name": "web:4", "span": "", "text": ""}], "more": 0}
    ]
    assert spike["lines"] == []


def opened(browser: Browser, where: str) -> tuple[Page, list[str]]:
    """A page, and all that it complains about."""
    page, complaints = browser.new_context(viewport={"width": 1100, "height": 900}).new_page(), []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(where)
    until(page, "window.report !== undefined")
    return page, complaints


def expect_spike(page: Page) -> None:
    """The dialog has the spike's rows, and what bites in its text is text."""
    dialog = page.locator("dialog#spike")
    expect(dialog).to_be_visible()
    expect(dialog.locator("h2")).to_have_text("step 153, stage long")
    expect(dialog.locator("pre.override")).to_have_text("[sources.web]\nwithout = [97, 812]")
    first = dialog.locator(".spike-rows li").first
    expect(first.locator(".loss")).to_have_text("9.2500")
    expect(first.locator("pre").first).to_have_text(f"garbage {BREAKS_OUT}")
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()


@pytest.mark.slow
def test_a_spike_is_opened_from_the_list_and_from_a_chart(browser: Browser, tmp_path: Path) -> None:
    folder = spiky_run(tmp_path / "made").folder
    page, complaints = opened(browser, write_report([folder], tmp_path / "page.html").as_uri())
    assert len(data_in(tmp_path / "page.html")["runs"][0]["spikes"]) == 2
    page.locator("#spikes button").first.click()
    expect_spike(page)
    chart = page.locator("#block-gradient-norm .u-over")
    chart.scroll_into_view_if_needed()
    at = "report.views.get('gradient-norm').plot.valToPos(154, 'x')"
    box = chart.bounding_box()
    assert box is not None
    x, y = box["x"] + page.evaluate(at), box["y"] + 20
    page.mouse.click(x - 2, y)
    expect_spike(page)
    page.mouse.click(x - 60, y)
    expect(page.locator("dialog#spike")).to_be_hidden()
    page.mouse.move(x - 200, y)  # a drag that ends at the spike zooms
    page.mouse.down()
    page.mouse.move(x, y, steps=4)
    page.mouse.up()
    expect(page.locator("dialog#spike")).to_be_hidden()
    assert complaints == []


@pytest.mark.slow
def test_a_page_that_is_watched_gets_new_spikes(browser: Browser, tmp_path: Path) -> None:
    run = WrittenRun(tmp_path / "made", 300)
    run.start()
    run.take(0, 200)
    with RunServer(run.folder, 0, poll_seconds=0.1) as server:
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            page, complaints = opened(browser, server.url)
            expect(page.locator("#spikes")).to_be_hidden()
            name = RunFolder(run.folder).write_rows(153, [kept_row(1, 9.25, 97, 812, text=f"garbage {BREAKS_OUT}")])
            run.tell(Spiked(step=154, stage="long", loss=4.5, limit=3.2, rows=name))
            page.locator("#spikes button").first.click()
            expect_spike(page)
            assert complaints == []
        finally:
            server.shutdown()
            thread.join()

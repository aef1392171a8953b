"""Draws the pictures of pages that docs/ shows, in the system's chromium: of the demo, and of runs that are made up.

python docs/make_pictures.py demo    # the folder that `trivium demo` has written
"""

import json
import sys
import tempfile
import threading
from contextlib import chdir
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
# Only the plan's picture and two charts of validation.
SUMMARY = """
header, #summary, #foot, h2, .lead, section { display: none }
#plan, #validation { display: block }
main { padding: .8rem; max-width: none }
#plan .card:not(#block-plan-picture), #validation .card:not(#block-validation-bpb):not(#block-validation-loss),
#plan .note, #validation .note { display: none }
.grid { margin-top: .8rem }
"""


LISTED = "#summary, #comparison { display: none }"  # the list, and the charts below it


def draw(browser: Any, address: str, name: str, width: int, height: int, **settings: Any) -> None:
    """A picture of a page's upper part; `style` hides some of it, `ready` is called with the page before."""
    style, ready, full = (settings.pop(key, None) for key in ("style", "ready", "full"))
    page = browser.new_page(viewport={"width": width, "height": height}, **settings)
    page.goto(address)
    page.wait_for_timeout(800)
    if style:
        page.add_style_tag(content=style)
    if ready:
        ready(page)
    page.wait_for_timeout(800)
    page.screenshot(path=IMAGES / f"{name}.png", full_page=bool(full))
    page.close()


def made_runs(folder: Path) -> Any:
    """Runs that the tests write: one with all events, another rate, forks; one counts as running while this is held."""
    from tests.support.runs import WrittenRun, eventful_run
    from trivium.run.folder import RunFolder

    eventful_run(folder / "base", "base")
    eventful_run(folder / "hotter", "hotter", lr=2e-3, seed=2)
    for name, parent, first, last in (("longer-rows", "base", 150, 210), ("cooler", "longer-rows", 180, 195)):
        fork = WrittenRun(folder / name, name=name, seed=len(name))
        (fork.folder / "lineage.json").write_text(json.dumps({"run": f"runs/{parent}", "step": first}))
        fork.start(first)
        fork.take(first, last)
        fork.evaluate(last)
    fork.end(195)
    held = RunFolder(folder / "longer-rows")
    held.lock()
    return held


def main(demo: Path) -> None:
    from tests.support.browser import system_browser
    from trivium.report.page import write_report
    from trivium.report.watch import RunServer

    with tempfile.TemporaryDirectory() as scratch, system_browser() as browser:
        folder = Path(scratch)
        with chdir(demo.parent):  # a page shows a run's folder as it was given
            page = write_report([Path(demo.name, "runs", "demo")], folder / "demo.html").as_uri()
        draw(browser, page, "report", 1100, 600, style=SUMMARY, full=True)
        draw(browser, page, "report-phone", 390, 844, color_scheme="dark", device_scale_factor=1.5)
        runs = folder / "runs"
        held = made_runs(runs)
        with chdir(folder), RunServer(Path("runs"), 0) as server:
            serving = threading.Thread(target=server.serve_forever)
            serving.start()
            both = write_report([runs / "base", runs / "hotter"], folder / "two.html").as_uri()
            draw(
                browser, both, "report-two-runs", 1200, 1000, ready=lambda page: page.evaluate("location.hash = 'loss'")
            )
            draw(
                browser,
                f"{server.url}?run=base&run=longer-rows",
                "runs",
                1200,
                1000,
                style=LISTED,
            )
            server.shutdown()
            serving.join()
        held.unlock()


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main(Path(sys.argv[1]).resolve())

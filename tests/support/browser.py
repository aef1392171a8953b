"""A real browser for the tests of pages."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def until(page: Page, expression: str) -> None:
    """Wait for something to be so; Playwright's own way evaluates a string, which the page's policy forbids."""
    for _ in range(200):
        if page.evaluate(expression):
            return
        page.wait_for_timeout(50)
    pytest.fail(f"never so: {expression}")


@contextmanager
def system_browser() -> Iterator[Browser]:
    """The system's chromium; where there is none the tests are skipped, but for CI, where they fail."""
    path = os.environ.get("TRIVIUM_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        what = "no chromium is here: install it (apt-get install chromium), or name one in TRIVIUM_CHROMIUM"
        if os.environ.get("TRIVIUM_NEEDS_BROWSER"):
            pytest.fail(what)
        pytest.skip(what)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()

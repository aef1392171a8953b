"""The pages build as a site without a warning, and what is built asks nothing of the network, searching included."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from playwright.sync_api import Browser

import trivium

ROOT = Path(__file__).parent.parent
FETCHED = re.compile(r"""<(?:script|img|iframe|source)[^>]*\ssrc=["']?(https?:)?//|<link[^>]*\shref=["']?https?://""")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site as `make docs` builds it, where no network can be reached."""
    folder = tmp_path_factory.mktemp("built") / "site"
    nowhere = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, **nowhere, "NO_MKDOCS_2_WARNING": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    return folder


@pytest.mark.slow
def test_every_page_is_built_and_fetches_nothing(site: Path) -> None:
    pages = {path.relative_to(site).with_suffix(".md").as_posix() for path in site.rglob("*.html")}
    written = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert pages - {"404.md", "index.md"} == written - {"README.md"}
    for path in site.rglob("*.html"):
        assert not FETCHED.search(path.read_text(encoding="utf-8")), path.name


@pytest.mark.slow
def test_the_page_of_the_api_has_the_docstring_of_every_public_name(site: Path) -> None:
    page = (site / "api.html").read_text(encoding="utf-8")
    for name in set(trivium.__all__) - {"__version__"}:
        home = getattr(trivium, name).__module__
        assert re.search(rf'id="(trivium|{re.escape(home)})\.{name}"', page), name
    assert "Read, translate and check a config; raises ConfigError with every problem." in page
    assert "This rank&#39;s rows of any step" in page or "This rank's rows of any step" in page


@pytest.mark.slow
@pytest.mark.parametrize("page", ["index.html", "decisions/0001-order-is-arithmetic.html"])
def test_search_works_from_a_folder(site: Path, browser: Browser, page: str) -> None:
    requests: list[str] = []
    opened = browser.new_page(viewport={"width": 1280, "height": 900})
    opened.on("request", lambda request: requests.append(request.url))
    opened.goto((site / page).as_uri())
    box, found = opened.locator("input.md-search__input"), opened.locator(".md-search-result__link")
    for _ in range(60):  # what is typed before the index is read is not looked for
        box.clear()
        box.press_sequentially("ledger")
        opened.wait_for_timeout(500)
        if found.count():
            break
    links = [link.get_attribute("href") or "" for link in found.all()]
    opened.close()
    assert any("concepts.html" in link for link in links), links
    assert all(url.startswith("file:") for url in requests), requests

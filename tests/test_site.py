"""The pages build as a site without a warning, and what is built asks nothing of the network."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FETCHED = re.compile(r"""<(?:script|img|iframe|source)[^>]*\ssrc=["']?(https?:)?//|<link[^>]*\shref=["']?https?://""")


@pytest.mark.slow
def test_the_site_builds_without_a_warning_and_without_a_network(tmp_path: Path) -> None:
    nowhere = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")],
        cwd=ROOT,
        env={**os.environ, **nowhere, "NO_MKDOCS_2_WARNING": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    pages = {
        path.relative_to(tmp_path / "site").with_suffix(".md").as_posix()
        for path in (tmp_path / "site").rglob("*.html")
    }
    written = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert pages - {"404.md", "index.md"} == written - {"README.md"}
    for path in (tmp_path / "site").rglob("*.html"):
        assert not FETCHED.search(path.read_text(encoding="utf-8")), path.name

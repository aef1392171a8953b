"""What tests of adapters have: a folder with the run in three stages."""

from pathlib import Path

import pytest

from tests.support.loops import write_three_stages


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with two sources and run.toml."""
    monkeypatch.chdir(tmp_path)
    write_three_stages(tmp_path)
    return tmp_path

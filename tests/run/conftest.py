"""A run to train, so that there is one on disk."""

from pathlib import Path

import pytest

from tests.support.training import write_four_stages


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with two sources and a config of four stages; the test works in it."""
    write_four_stages(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path

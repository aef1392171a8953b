"""The run whose spike is explained, trained once."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.spikes import spiked_run


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that has the run in runs/dice."""
    folder = tmp_path_factory.mktemp("spiked")
    with contextlib.chdir(folder):
        spiked_run(folder)
    return folder


@pytest.fixture
def spiked(trained: Path, session_cache: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The run, from its own folder; a test changes nothing of it."""
    monkeypatch.chdir(trained)
    monkeypatch.setenv("TRIVIUM_CACHE", str(session_cache))  # which has its source prepared
    before = {path: path.stat().st_mtime_ns for path in sorted(Path("runs/dice").rglob("*"))}
    yield Path("runs/dice")
    assert {path: path.stat().st_mtime_ns for path in sorted(Path("runs/dice").rglob("*"))} == before

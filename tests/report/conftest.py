"""Pages of runs that were written for the purpose."""

from pathlib import Path

import pytest

from tests.support.runs import eventful_run
from trivium.report.page import write_report


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in which everything happened that a page shows."""
    return eventful_run(tmp_path_factory.mktemp("runs") / "made").folder


@pytest.fixture(scope="session")
def page_file(run_folder: Path) -> Path:
    """The page of that run."""
    return write_report([run_folder], run_folder / "report.html")

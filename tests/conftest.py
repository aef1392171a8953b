"""Every test has a cache folder of its own, and Hypothesis no deadline: a kernel's first call compiles."""

from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("trivium", deadline=None, print_blob=True)
settings.load_profile("trivium")


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What is computed from files goes to a folder that goes away."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("TRIVIUM_CACHE", str(folder))
    return folder

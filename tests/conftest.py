"""Every test has a cache folder of its own, and Hypothesis no deadline: a kernel's first call compiles.

`--hypothesis-profile fast` tries fewer examples, where a test does not say how many it wants.
"""

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("trivium", deadline=None, print_blob=True)
settings.register_profile("fast", settings.get_profile("trivium"), max_examples=20)
settings.load_profile("trivium")


@pytest.fixture(scope="session")
def all_caches(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """New folders within one; pytest's own would look at all that there are, for every test."""
    folder = tmp_path_factory.mktemp("caches")
    return (folder / str(number) for number in count())


@pytest.fixture(autouse=True)
def own_cache(all_caches: Iterator[Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    """What is computed from files goes to a folder that goes away."""
    folder = next(all_caches)
    folder.mkdir()
    monkeypatch.setenv("TRIVIUM_CACHE", str(folder))
    return folder

"""What the tests of token files share: a cache folder, and the message with which a source is refused."""

from collections.abc import Callable
from pathlib import Path

import pytest

from trivium.errors import SourceError
from trivium.tokenfiles.open import TokenFileSettings, open_source


@pytest.fixture
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def refusal(cache: Path) -> Callable[..., str]:
    def refuse(path: Path, settings: TokenFileSettings | None = None) -> str:
        with pytest.raises(SourceError) as caught:
            open_source(path, settings, cache)
        return str(caught.value)

    return refuse

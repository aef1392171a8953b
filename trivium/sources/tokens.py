"""Token files that are there already."""

from pathlib import Path

from trivium.config.sources import TokensSource
from trivium.sources.located import Located, Means, exists
from trivium.tokenfiles.open import TokenFileSettings, open_source


def locate(_name: str, source: TokensSource, _means: Means) -> Located | None:
    """A source's files, mapped; None where nothing of it is on disk."""
    assert source.path is not None, "a checked source has a path"
    if not exists(source.path):
        return None
    paths = [Path(path) for path in source.path]
    folder = paths[0] if len(paths) == 1 and paths[0].is_dir() else None
    return Located(open_source(source.path, TokenFileSettings(source.dtype, source.eos, source.bos)), folder)

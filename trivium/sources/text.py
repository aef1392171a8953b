"""Local text, tokenised on first use."""

from trivium.config.sources import TextSource
from trivium.prepare.recipe import FilesWork, Recipe
from trivium.sources.located import Located, Means, exists, prepared_files
from trivium.textfiles.inputs import find_inputs


def locate(name: str, source: TextSource, means: Means) -> Located | None:
    """The token files of a source of text; None where nothing of it is on disk."""
    assert source.path is not None, "a checked source has a path"
    if not exists(source.path):
        return None
    recipe = Recipe("text", means.tokenizer, means.said, source.column, source.add)
    return prepared_files(name, source, FilesWork(find_inputs(source.path)), recipe, means)

"""What every kind of source comes down to: token files, and where a manifest of them may lie."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from glob import glob
from pathlib import Path
from typing import Any

import xxhash

from trivium.config.schema import Tokenizer as TokenizerConfig
from trivium.config.sources import PreparedSource
from trivium.errors import SourceError
from trivium.files import cache_folder, cached_draft
from trivium.prepare.folder import Prepared
from trivium.prepare.prepare import prepare
from trivium.prepare.recipe import Recipe, Work, identity_of
from trivium.text.tokenizer import Tokenizer, open_tokenizer
from trivium.tokenfiles.manifest import MANIFEST_NAME
from trivium.tokenfiles.open import TokenFile, open_source


@dataclass(frozen=True, slots=True)
class Located:
    """A source's token files, and the folder that holds them and nothing else, if there is one."""

    files: tuple[TokenFile, ...]
    folder: Path | None


class Means:
    """What a source may use to become token files: the config's tokenizer, so many workers, maybe the Hub."""

    def __init__(self, said: TokenizerConfig | None, *, fetch: bool = False, workers: int | None = None) -> None:
        self.said = said
        self.fetch = fetch
        self.workers = workers

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The config's, which text needs."""
        opened = open_tokenizer(self.said)
        if opened is None:
            raise SourceError(
                "is text, and the config has no [tokenizer] to turn it into tokens. "
                'Write tokenizer.path = "tokenizer.json", or tokenizer.kind = "bytes".'
            )
        return opened

    @property
    def lacks_tokenizer(self) -> bool:
        """Whether the tokenizer is not there, or not there yet."""
        try:
            return self.tokenizer is None
        except SourceError:
            return True


def exists(paths: Sequence[str]) -> bool:
    """Whether anything of these paths is on disk; a pattern may match nothing yet."""
    return any(Path(path).exists() or glob(path, recursive=True) for path in paths)


def prepared_files(name: str, source: PreparedSource, work: Work, recipe: Recipe, means: Means) -> Located:
    """Token files of an input: prepared on first use in the cache folder, under a hash of all that decides them."""
    folder = prepared_folder(identity_of(work, recipe))
    made = prepare(work, recipe, folder, title=name, workers=means.workers, most_bad=source.bad_lines)
    return opened(made)


def prepared_folder(identity: str) -> Path:
    """Where the token files of an input are kept."""
    return cache_folder() / "prepared" / identity


def opened(made: Prepared) -> Located:
    """Prepared files, mapped."""
    return Located(open_source(made.folder), made.folder)


class Note:
    """A note in the cache folder of what came of something that was fetched, so that no network is asked again."""

    def __init__(self, asked: Any) -> None:
        hashed = xxhash.xxh3_128_hexdigest(json.dumps(asked).encode())
        self._path = cache_folder() / "fetched" / f"{hashed}.json"

    def followed(self) -> Located | None:
        """The token files that it leads to, if they are still there."""
        try:
            folder = prepared_folder(str(json.loads(self._path.read_bytes())["identity"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return Located(open_source(folder), folder) if (folder / MANIFEST_NAME).is_file() else None

    def keep(self, located: Located) -> None:
        """Write it."""
        assert located.folder is not None, "what was prepared is in a folder"
        with cached_draft(self._path) as file:
            file.write(json.dumps({"identity": located.folder.name}).encode())

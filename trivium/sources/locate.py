"""What every kind of source comes down to: token files, and where a manifest of them may lie; or why it has none.

Nothing is fetched, read or written here unless the settings allow to prepare: text that was prepared before is found by
the hashes of its files, a dataset by a note, both in the cache folder.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from glob import glob
from pathlib import Path
from typing import Any, NamedTuple

from trivium.config.numbers import show_count
from trivium.config.schema import Tokenizer as TokenizerConfig
from trivium.config.sources import HuggingFaceSource, PreparedSource, TextSource, TokensSource
from trivium.errors import SourceError
from trivium.files import cache_folder, hash_json, keep_in_cache, read_json
from trivium.paths import suggestion
from trivium.prepare.encode import Recipe
from trivium.prepare.folder import VERSION, identity_of, is_prepared
from trivium.prepare.prepare import prepare
from trivium.prepare.shards import FilesWork, Work
from trivium.text.fim import find_fim
from trivium.text.tokenizer import AwaitedTokenizerError, Tokenizer, open_tokenizer
from trivium.textfiles.inputs import find_inputs, list_inputs
from trivium.textfiles.score import ScoreRange
from trivium.tokenfiles import find
from trivium.tokenfiles.open import TokenFile, TokenFileSettings, open_source


class TokenizerError(SourceError):
    """What a source needs is a tokenizer, and there is none that can be opened."""


class Gap(NamedTuple):
    """Why a source has no token files yet, and the command that makes them, where there is one."""

    reason: str
    fix: str = ""

    def __str__(self) -> str:
        return f"{self.reason}.{self.fix}"


@dataclass(frozen=True, slots=True)
class LocatedSource:
    """A source's token files, and the folder that holds them and nothing else, if there is one; or a gap."""

    files: tuple[TokenFile, ...] = ()
    folder: Path | None = None
    gap: Gap | None = None


class LocateSettings:
    """How sources become token files: by which tokenizer, and whether they may be fetched and prepared for it."""

    def __init__(self, config: TokenizerConfig | None, *, prepare: bool = False, workers: int | None = None) -> None:
        self.config = config
        self.prepare = prepare
        self.workers = workers

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The config's, which text needs."""
        try:
            opened = open_tokenizer(self.config, fetch=self.prepare)
        except AwaitedTokenizerError:
            raise
        except SourceError as error:
            raise TokenizerError(str(error)) from error
        if opened is None:
            what = 'is missing. Write tokenizer.path = "tokenizer.json", or tokenizer.kind = "bytes".'
            raise TokenizerError(f"tokenizer: {what}")
        return opened

    @property
    def lacks_tokenizer(self) -> bool:
        """Whether the tokenizer is not there, or not there yet."""
        try:
            return self.tokenizer is None
        except SourceError:
            return True


def locate_tokens(_name: str, source: TokensSource, _settings: LocateSettings) -> LocatedSource:
    assert source.path is not None, "a checked source has a path"
    if not any(map(find.exists, source.path)):
        return not_there(source.path)
    paths = [Path(path) for path in source.path]
    folder = paths[0] if len(paths) == 1 and paths[0].is_dir() else None
    settings = TokenFileSettings(source.dtype, source.eos, source.bos, source.padding)
    return LocatedSource(open_source(source.path, settings), folder)


def locate_text(name: str, source: TextSource, settings: LocateSettings) -> LocatedSource:
    """The token files of local text, tokenised on first use."""
    assert source.path is not None, "a checked source has a path"
    if not exists(source.path):
        return not_there(source.path)
    recipe = text_recipe(source, settings)
    work = FilesWork(find_inputs(source.path, hashing=settings.prepare))
    return prepared_files(name, source, work, recipe, settings)


def text_recipe(
    source: TextSource | HuggingFaceSource, settings: LocateSettings, dataset: dict[str, Any] | None = None
) -> Recipe:
    """How the texts of a source become tokens."""
    fim = find_fim(source.fim, settings.tokenizer, settings.config)
    asked = source.score
    score = None if asked is None else ScoreRange(asked.column, asked.at_least, asked.below)
    words = settings.tokenizer, settings.config
    return Recipe("text", *words, source.column, source.add, dataset, fim=fim, score=score)


def exists(paths: Sequence[str]) -> bool:
    """Whether anything of these paths is on disk; a pattern may match nothing yet."""
    return any(Path(path).exists() or glob(path, recursive=True) for path in paths)


def not_there(paths: Sequence[str]) -> LocatedSource:
    """The gap of a source of which nothing is on disk."""
    hint = next(filter(None, map(suggestion, paths)), "")
    return LocatedSource(gap=Gap(f"{' '.join(paths)} does not exist", hint))


def not_fetched(what: str) -> LocatedSource:
    """The gap of a dataset or task that is on the Hub."""
    return LocatedSource(gap=Gap(f"{what} is not on disk, and trivium prepare has not fetched it"))


def not_prepared(what: str, paths: Sequence[str]) -> LocatedSource:
    """The gap of text that is on disk, or generated, and not tokenised yet."""
    files = list_inputs(paths) if paths else ()
    size = show_count(sum(file.size for file in files))
    counts = f" ({len(files):,} file{'s' if len(files) != 1 else ''}, {size} bytes)" if files else ""
    fix = " Run trivium prepare CONFIG, or trivium plan --prepare CONFIG."
    return LocatedSource(gap=Gap(f"{what} is not prepared yet{counts}", fix))


def prepared_files(
    name: str, source: PreparedSource, work: Work, recipe: Recipe, settings: LocateSettings
) -> LocatedSource:
    """Token files of an input: prepared on first use in the cache folder, under a hash of all that decides them."""
    identity = identity_of(work, recipe)  # of a file without a known hash: one that no folder has
    if settings.prepare:
        folder = prepared_folder(identity)
        prepare(work, recipe, folder, title=name, workers=settings.workers, most_bad=source.bad_lines)
    paths = getattr(source, "path", None) or ()
    return open_prepared(identity) or not_prepared(source.where if paths else f"task {source.where}", paths)


def prepared_folder(identity: str) -> Path:
    return cache_folder() / "prepared" / identity


def open_prepared(identity: str) -> LocatedSource | None:
    """Files that were prepared before, mapped; None where they were not, or not to the end."""
    folder = prepared_folder(identity)
    if not is_prepared(folder):
        return None
    try:
        return LocatedSource(open_source(folder), folder)
    except SourceError as error:
        if isinstance(error.__cause__, OSError):  # of the system, not of what a file holds
            raise
        found, _, _ = str(error).partition(". ")  # without the advice for files that trivium cannot make again
        raise SourceError(f"{found}. Delete {folder}: trivium prepares it again.") from error


class FetchedNote:
    """A note in the cache folder of what came of a dataset, so that neither it nor the network is asked again."""

    def __init__(self, asked: Any) -> None:
        self._path = cache_folder() / "fetched" / f"{hash_json([VERSION, asked])}.json"

    def followed(self) -> LocatedSource | None:
        """The token files that it leads to, if they are still there."""
        try:
            identity = str(read_json(self._path)["identity"])
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return open_prepared(identity)

    def keep(self, located: LocatedSource) -> None:
        assert located.folder is not None, "what was prepared is in a folder"
        keep_in_cache(self._path, json.dumps({"identity": located.folder.name}).encode())

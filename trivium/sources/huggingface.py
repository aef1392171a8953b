"""A Hugging Face dataset, eager: tokenised on first use, or tokenised already.

It is loaded and fetched only where preparing is allowed; then a note in the cache folder names its token files, so
that a plan needs neither the network nor the package datasets.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trivium.config.sources import HuggingFaceSource
from trivium.files import stamp_of
from trivium.paths import find_any
from trivium.prepare.dataset_rows import SAVED, described, load_rows, token_column
from trivium.prepare.encode import Recipe
from trivium.prepare.shards import KnownParts, QueuedShard, Shard, shard_size
from trivium.sources.locate import (
    FetchedNote,
    LocatedSource,
    LocateSettings,
    not_fetched,
    not_prepared,
    prepared_files,
    text_recipe,
)
from trivium.textfiles.read import InputPart


@dataclass(frozen=True, slots=True)
class RowsWork:
    """Rows of a dataset."""

    name: str
    fingerprint: str
    num_rows: int
    num_bytes: int

    @property
    def content(self) -> list[Any]:
        """What the package datasets knows it by."""
        return [self.fingerprint, self.num_rows]

    @property
    def total(self) -> int:
        return self.num_bytes

    @property
    def rows_each(self) -> int:
        """Rows of a shard."""
        return max(1, self.num_rows * shard_size(self.num_bytes) // max(1, self.num_bytes))

    @property
    def most_workers(self) -> int:
        return -(-self.num_rows // self.rows_each)

    def shards(self, known: KnownParts) -> Iterator[QueuedShard]:
        for number, start in enumerate(range(0, self.num_rows, self.rows_each)):
            stop = min(start + self.rows_each, self.num_rows)
            part = InputPart("", self.name, "rows", start, stop, self.fingerprint)
            yield QueuedShard(Shard(f"{number:05d}", (part,), self.num_bytes * (stop - start) // self.num_rows))


def locate_dataset(name: str, source: HuggingFaceSource, settings: LocateSettings) -> LocatedSource:
    assert source.dataset is not None, "a checked source has a dataset"
    local = Path(source.dataset).exists()
    if not local and not settings.prepare and not source.tokenised and settings.lacks_tokenizer:
        return not_fetched(source.where)  # it is asked for a tokenizer when it is there
    note = FetchedNote(_asked(source, settings, _stamps(source.dataset) if local else None))
    if (there := note.followed()) is not None:
        return there
    if not settings.prepare:
        return not_prepared(source.where, [source.dataset]) if local else not_fetched(source.where)
    saved = local and any((Path(source.dataset) / each).is_file() for each in SAVED)
    rows = load_rows(source.dataset, source.subset, source.split, saved=saved)
    description = described(rows, source.dataset, source.split, saved=saved)
    if source.tokenised:
        recipe = Recipe("tokenised", column=token_column(rows), dataset=description)
    else:
        recipe = text_recipe(source, settings, description)
    work = RowsWork(source.where, rows._fingerprint, rows.num_rows, int(rows.data.nbytes))
    found = prepared_files(name, source, work, recipe, settings)
    note.keep(found)
    return found


def _asked(source: HuggingFaceSource, settings: LocateSettings, files: Any) -> list[Any]:
    """What is asked of the Hub or a folder, and of what comes from there."""
    asked: list[Any] = [source.dataset, source.subset, source.split, source.tokenised, files]
    if not source.tokenised:
        asked.append(text_recipe(source, settings).content)
    return asked


def _stamps(dataset: str) -> list[list[str | int]]:
    """A local dataset's files: one that changes is another dataset."""
    stamps = [stamp_of(file.path) for file in find_any([dataset])]
    return [[str(stamp.path.resolve()), stamp.size, stamp.mtime_ns] for stamp in stamps]

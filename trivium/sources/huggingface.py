"""A Hugging Face dataset, eager: tokenised on first use, or tokenised already.

What is on disk is opened every time, which is cheap. What is on the Hub is fetched only where that is allowed; then
a note in the cache folder says what came of it, so that a plan needs no network.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trivium.config.sources import HuggingFaceSource
from trivium.prepare.dataset_rows import SAVED, described, load_rows, token_column
from trivium.prepare.feed import Known
from trivium.prepare.recipe import Recipe
from trivium.prepare.shards import Shard, shard_size
from trivium.prepare.workers import Task
from trivium.sources.located import Located, Means, Note, prepared_files
from trivium.textfiles.inputs import InputPart


@dataclass(frozen=True, slots=True)
class RowsWork:
    """Rows of a dataset."""

    name: str
    fingerprint: str
    num_rows: int
    num_bytes: int

    @property
    def content(self) -> list[Any]:
        """As `datasets` tells one dataset from another."""
        return [self.fingerprint, self.num_rows]

    @property
    def total(self) -> int:
        """Bytes in memory."""
        return self.num_bytes

    @property
    def rows_each(self) -> int:
        """Rows of a shard."""
        return max(1, self.num_rows * shard_size(self.num_bytes) // max(1, self.num_bytes))

    @property
    def most_workers(self) -> int:
        """As many as there are shards."""
        return -(-self.num_rows // self.rows_each)

    def tasks(self, known: Known) -> Iterator[Task]:
        """Every shard, in order."""
        for number, start in enumerate(range(0, self.num_rows, self.rows_each)):
            stop = min(start + self.rows_each, self.num_rows)
            piece = InputPart("", self.name, "rows", start, stop, self.fingerprint)
            yield Task(Shard(f"{number:05d}.ds", (piece,), self.num_bytes * (stop - start) // self.num_rows))


def locate(name: str, source: HuggingFaceSource, means: Means) -> Located | None:
    """The token files of a dataset; None where it is neither on disk nor fetched."""
    assert source.dataset is not None, "a checked source has a dataset"
    local = Path(source.dataset).exists()
    if not local and not means.fetch and not source.tokenised and means.lacks_tokenizer:
        return None  # it is asked for a tokenizer when it is there
    note = None if local else Note(_asked(source, means))
    if note is not None and (there := note.followed()) is not None:
        return there
    if not local and not means.fetch:
        return None
    saved = local and any((Path(source.dataset) / each).is_file() for each in SAVED)
    rows = load_rows(source.dataset, source.subset, source.split, saved=saved)
    description = described(rows, source.dataset, source.split, saved=saved)
    if source.tokenised:
        recipe = Recipe("tokenised", column=token_column(rows), dataset=description)
    else:
        recipe = Recipe("text", means.tokenizer, means.said, source.column, source.add, description)
    work = RowsWork(source.dataset, rows._fingerprint, rows.num_rows, int(rows.data.nbytes))
    found = prepared_files(name, source, work, recipe, means)
    if note is not None:
        note.keep(found)
    return found


def _asked(source: HuggingFaceSource, means: Means) -> list[Any]:
    """What is asked of the Hub, and of what comes from there."""
    asked: list[Any] = [source.dataset, source.subset, source.split, source.tokenised]
    if not source.tokenised:
        asked.append(Recipe("text", means.tokenizer, means.said, source.column, source.add).content)
    return asked

"""What is prepared, and how: an input divided into shards, and what turns a document into tokens."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import xxhash

from trivium.config.schema import Tokenizer as TokenizerConfig
from trivium.prepare.encode import Form, Job
from trivium.prepare.feed import Known, feed, feed_stream
from trivium.prepare.shards import Stream, divide, weight
from trivium.prepare.workers import Task
from trivium.text.roles import Role
from trivium.text.tokenizer import AddedTokens, Tokenizer, added_roles, added_tokens
from trivium.textfiles.inputs import InputFile, InputPart
from trivium.tokenfiles.write import dtype_for

VERSION = 1
LINES_BYTES = 4 << 20  # of a shard of lines that are made
NO_NAME = "Unknown Tokenizer"  # as datatrove writes it


class Work(Protocol):
    """An input to prepare."""

    @property
    def content(self) -> Any:
        """Plain values that change with its content."""

    @property
    def total(self) -> int:
        """Its size, for the progress bar."""

    @property
    def most_workers(self) -> int:
        """More than these would have nothing to do."""

    def tasks(self, known: Known) -> Iterator[Task]:
        """Every shard, in order."""


@dataclass(frozen=True, slots=True)
class FilesWork:
    """Files of text."""

    files: tuple[InputFile, ...]

    @property
    def content(self) -> list[list[str]]:
        """Names and hashes."""
        return [[file.name, file.reader, file.hash] for file in self.files]

    @property
    def total(self) -> int:
        """Bytes."""
        return sum(weight(file) for file in self.files)

    @property
    def most_workers(self) -> int:
        """As many as there are shards; a stream has many."""
        parts = list(divide(self.files))
        return 10**6 if any(isinstance(part, Stream) for part in parts) else len(parts)

    def tasks(self, known: Known) -> Iterator[Task]:
        """Every shard, in order."""
        for part in divide(self.files):
            if isinstance(part, Stream):
                yield from feed_stream(part, known)
            else:
                yield Task(part)


@dataclass(frozen=True, slots=True)
class LinesWork:
    """Lines of JSON that are made one after the other."""

    name: str
    content: Any
    size: Callable[[], int]  # in bytes, about
    lines: Callable[[], Iterator[bytes]]  # each with its end
    first_line: int = 0

    @property
    def total(self) -> int:
        """Bytes, about."""
        return self.size()

    @property
    def most_workers(self) -> int:
        """As many as there are shards, about."""
        return max(1, self.total // LINES_BYTES)

    def tasks(self, known: Known) -> Iterator[Task]:
        """Every shard, in order."""
        hashed = xxhash.xxh3_128_hexdigest(json.dumps(self.content).encode())
        whole = InputPart("", self.name, "jsonl", 0, LINES_BYTES, str(hashed))
        return feed("00000", whole, self._payloads, known, self.first_line)

    def _payloads(self) -> Iterator[tuple[bytes, int]]:
        held: list[bytes] = []
        size = 0
        for line in self.lines():
            held.append(line)
            size += len(line)
            if size >= LINES_BYTES:
                yield b"".join(held), size
                held, size = [], 0
        if held:
            yield b"".join(held), size


@dataclass(frozen=True, slots=True)
class Recipe:
    """How documents become tokens."""

    form: Form
    tokenizer: Tokenizer | None = None
    said: TokenizerConfig | None = None  # from which other processes open it
    column: str = "text"
    add: tuple[Role, ...] | None = None  # added to each document; None: see `added_roles`
    dataset: dict[str, Any] | None = None  # where rows come from

    @property
    def added(self) -> tuple[Role, ...]:
        """The roles of what is added; a conversation has its own marks."""
        return () if self.form != "text" or self.tokenizer is None else added_roles(self.tokenizer, self.add)

    @property
    def content(self) -> Any:
        """Plain values that change with the tokens of any document."""
        fingerprint = None if self.tokenizer is None else self.tokenizer.fingerprint
        return [VERSION, self.form, fingerprint, self.column, sorted(self.added)]

    def job(self, folder: Path) -> Job:
        """For the workers."""
        marks = AddedTokens() if self.tokenizer is None else added_tokens(self.tokenizer, self.added)
        return Job(
            folder=str(folder),
            form=self.form,
            dtype="uint32" if self.tokenizer is None else dtype_for(self.tokenizer.vocab),
            name=NO_NAME if self.tokenizer is None else self.tokenizer.fingerprint,
            tokenizer=None if self.said is None else self.said.model_dump(mode="json", exclude_none=True),
            column=self.column,
            before=marks.before,
            after=marks.after,
            dataset=self.dataset,
        )


def identity_of(work: Work, recipe: Recipe) -> str:
    """A hash of everything that decides the token files."""
    return str(xxhash.xxh3_128_hexdigest(json.dumps([work.content, recipe.content]).encode()))

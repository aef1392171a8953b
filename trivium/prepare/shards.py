"""An input -> shards, each of which becomes one token file.

How the input is divided depends on the files and their sizes alone, so that any number of workers writes the same
files. Large JSONL files are cut at the lines nearest to multiples of a shard's size, Parquet files between row
groups; small files are put together. What can only be read one line after the other (a large compressed file,
generated conversations) is read once, from its start, and sent to the workers as it comes: one reader keeps some
forty of them busy.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple, Protocol

from trivium.files import hash_json
from trivium.textfiles.decompress import BUFFER_BYTES, open_input
from trivium.textfiles.inputs import InputFile, part_of, whole_part
from trivium.textfiles.read import MOST_BYTES, InputPart, reading, row_group_sizes, skip_rest_of_line

MIB = 1 << 20
SMALLEST, LARGEST = MIB, 128 * MIB  # of a shard, in bytes of input
WANTED = 32  # shards of a small input, so that there is work for all cores
EXPANSION = 4  # a compressed byte counts as this many
SENT_BYTES = 4 << 20  # of a shard of generated lines


@dataclass(frozen=True, slots=True)
class Shard:
    """What becomes one token file; `sent` where its lines are sent to the worker, `lines_before` of them earlier."""

    name: str  # of its files, without their endings
    parts: tuple[InputPart, ...]
    size: int  # of the input
    sent: bool = False
    lines_before: int = 0
    more: tuple[str, ...] = field(default=())  # what else decides its content

    def key(self, recipe: Any) -> str:
        """Tells it from any other shard, and from the same one of other input or by another recipe."""
        content = [recipe, [asdict(part) | {"path": ""} for part in self.parts], self.sent, self.more]
        return hash_json(content)


class QueuedShard(NamedTuple):
    """A shard to encode, and its lines where they are sent along."""

    shard: Shard
    lines: bytes | None = None


class KnownParts(Protocol):
    """Remembers in how many shards an input was cut that can only be read from its start."""

    def num_parts(self, name: str, part: InputPart) -> int | None:
        """The number, if the input has been read to its end."""

    def set_parts(self, name: str, part: InputPart, count: int) -> None:
        """Remember the number: the input has been read to its end."""

    def is_finished(self, shard: Shard) -> bool:
        """Whether a shard needs its lines no more."""


class Work(Protocol):
    """An input to prepare."""

    @property
    def content(self) -> Any:
        """Plain values that change with its content."""

    @property
    def total(self) -> int:
        """Its size in bytes, for the progress bar."""

    @property
    def most_workers(self) -> int:
        """More than these would have nothing to do."""

    def shards(self, known: KnownParts) -> Iterator[QueuedShard]:
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
        """Bytes of text, about."""
        return sum(weight(file) for file in self.files)

    @property
    def most_workers(self) -> int:
        """One for each shard; a large compressed file has many."""
        shards = list(divide(self.files))
        return 10**6 if any(isinstance(each, CompressedInput) for each in shards) else len(shards)

    def shards(self, known: KnownParts) -> Iterator[QueuedShard]:
        for each in divide(self.files):
            if isinstance(each, CompressedInput):
                yield from each.shards(known)
            else:
                yield QueuedShard(each)


@dataclass(frozen=True, slots=True)
class LinesWork:
    """Lines of JSON that are generated one after the other."""

    name: str
    content: Any
    size: Callable[[], int]  # in bytes, about
    lines: Callable[[], Iterator[bytes]]  # each with its end
    first_line: int = 0

    @property
    def total(self) -> int:
        return self.size()

    @property
    def most_workers(self) -> int:
        return max(1, self.total // SENT_BYTES)

    def shards(self, known: KnownParts) -> Iterator[QueuedShard]:
        whole = InputPart("", self.name, "jsonl", 0, SENT_BYTES, hash_json(self.content))
        return send("00000", whole, self._joined, known, self.first_line)

    def _joined(self) -> Iterator[tuple[bytes, int]]:
        held: list[bytes] = []
        size = 0
        for line in self.lines():
            held.append(line)
            size += len(line)
            if size >= SENT_BYTES:
                yield b"".join(held), size
                held, size = [], 0
        if held:
            yield b"".join(held), size


def shard_size(total: int) -> int:
    """Bytes of input in a shard: a power of two, so that an input that grows a little keeps its division."""
    size = SMALLEST
    while size < LARGEST and size * WANTED < total:
        size *= 2
    return size


def weight(file: InputFile) -> int:
    """A file's size as text, about."""
    return file.size * (EXPANSION if file.compressed else 1)


@dataclass(frozen=True, slots=True)
class CompressedInput:
    """A large compressed file of lines: how many shards it has is known when it has been read."""

    number: int
    file: InputFile
    shard_bytes: int

    def shards(self, known: KnownParts) -> Iterator[QueuedShard]:
        """Its shards, each cut behind the line in which it is full."""
        whole = InputPart(str(self.file.path), self.file.name, "jsonl", 0, self.shard_bytes, self.file.hash)
        return send(f"{self.number:05d}", whole, self._cut, known)

    def _cut(self) -> Iterator[tuple[bytes, int]]:
        path = self.file.path
        with reading(path), open(path, "rb", buffering=BUFFER_BYTES) as raw:
            text = open_input(path, raw)
            before = 0
            while lines := text.read(self.shard_bytes):
                if not lines.endswith(b"\n"):
                    rest = text.readline(MOST_BYTES)
                    if len(rest) == MOST_BYTES:
                        skip_rest_of_line(text)
                    lines += rest
                yield lines, raw.tell() - before
                before = raw.tell()


def send(
    name: str, whole: InputPart, read: Callable[[], Iterator[tuple[bytes, int]]], known: KnownParts, first_line: int = 0
) -> Iterator[QueuedShard]:
    """A shard for each stretch of lines that `read` gives, with the bytes of input that it took."""

    def shard(part: int, size: int, lines_before: int) -> Shard:
        return Shard(f"{name}-{part:05d}", (whole,), size, True, lines_before, (str(part),))

    finished = [shard(part, 0, 0) for part in range(known.num_parts(name, whole) or 0)]
    if finished and all(map(known.is_finished, finished)):
        yield from map(QueuedShard, finished)
        return
    lines_before, count = first_line, 0
    for lines, size in read():
        yield QueuedShard(shard(count, size, lines_before), lines)
        lines_before += lines.count(b"\n") + (not lines.endswith(b"\n"))  # the end of a line over the limit is skipped
        count += 1
    known.set_parts(name, whole, count)


def divide(files: Sequence[InputFile]) -> Iterator[Shard | CompressedInput]:
    """The shards of an input, in order; a large compressed file divides itself when it is read."""
    size = shard_size(sum(weight(file) for file in files))
    number = 0
    together: list[InputPart] = []
    held = 0
    for file in files:
        if together and held + weight(file) > size:
            yield Shard(f"{number:05d}", tuple(together), held)
            number, together, held = number + 1, [], 0
        if weight(file) <= size or file.reader == "text":
            together.append(whole_part(file))
            held += weight(file)
        elif file.compressed:
            yield CompressedInput(number, file, size)
            number += 1
        else:
            for start, stop, count in _cuts(file, size):
                yield Shard(f"{number:05d}", (part_of(file, start, stop),), count)
                number += 1
    if together:
        yield Shard(f"{number:05d}", tuple(together), held)


def _cuts(file: InputFile, size: int) -> Iterator[tuple[int, int, int]]:
    """Where a large file is cut, and the bytes of each part."""
    if file.reader == "jsonl":
        for start in range(0, file.size, size):
            stop = min(start + size, file.size)
            yield start, stop, stop - start
        return
    first = held = 0
    groups = row_group_sizes(file.path)
    for group, count in enumerate(groups):
        if held and held + count > size:
            yield first, group, held
            first, held = group, 0
        held += count
    yield first, len(groups), held

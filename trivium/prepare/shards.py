"""Input files -> shards, each of which becomes one token file.

How the input is divided depends on the files and their sizes alone, so that any number of workers writes the same
files. Large JSONL files are cut at the lines nearest to multiples of a shard's size, Parquet files between row
groups; small files are put together. A large compressed file is read once, from its start, and cut as it comes.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import xxhash

from trivium.textfiles.inputs import InputFile, InputPart, part_of, whole_part
from trivium.textfiles.read import row_group_sizes

MIB = 1 << 20
SMALLEST, LARGEST = MIB, 128 * MIB  # of a shard, in bytes of input
WANTED = 32  # shards of a small input, so that there is work for all cores
EXPANSION = 4  # a compressed byte counts as so many


@dataclass(frozen=True, slots=True)
class Shard:
    """What becomes one token file; `fed` where its lines are sent to the worker, `lines_before` of them earlier."""

    name: str
    pieces: tuple[InputPart, ...]
    size: int  # of the input
    fed: bool = False
    lines_before: int = 0
    more: tuple[str, ...] = field(default=())  # what else decides its content

    def key(self, recipe: Any) -> str:
        """Tells it from any other shard, and from the same one of other input or by another recipe."""
        content = [recipe, [asdict(piece) | {"path": ""} for piece in self.pieces], self.fed, self.more]
        return str(xxhash.xxh3_128_hexdigest(json.dumps(content).encode()))


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
class Stream:
    """A large compressed file of lines: how many shards it has is known when it has been read."""

    number: int
    file: InputFile
    shard_bytes: int


def divide(files: Sequence[InputFile]) -> Iterator[Shard | Stream]:
    """The shards of an input, in order; a stream stands for its own."""
    size = shard_size(sum(weight(file) for file in files))
    number = 0
    together: list[InputPart] = []
    held = 0
    for file in files:
        if together and held + weight(file) > size:
            yield Shard(f"{number:05d}.ds", tuple(together), held)
            number, together, held = number + 1, [], 0
        if weight(file) <= size or file.reader == "text":
            together.append(whole_part(file))
            held += weight(file)
        elif file.compressed:
            yield Stream(number, file, size)
            number += 1
        else:
            for start, stop, count in _cuts(file, size):
                yield Shard(f"{number:05d}.ds", (part_of(file, start, stop),), count)
                number += 1
    if together:
        yield Shard(f"{number:05d}.ds", tuple(together), held)


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

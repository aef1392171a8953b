"""Lines that can only be read one after the other -> shards that are sent to the workers, in order.

Large compressed files and generated conversations are such. One reader keeps some forty workers busy.
"""

from collections.abc import Callable, Iterator
from typing import Protocol

from trivium.prepare.shards import Shard, Stream
from trivium.prepare.workers import Task
from trivium.textfiles.inputs import InputPart
from trivium.textfiles.read import BUFFER_BYTES, MOST_BYTES, open_input, pass_rest_of_line, reading


class Known(Protocol):
    """What earlier tries have finished."""

    def num_parts(self, name: str, piece: InputPart) -> int | None:
        """In how many shards a stream was cut, if it has been read to its end."""

    def set_parts(self, name: str, piece: InputPart, count: int) -> None:
        """It has been read to its end."""


def feed_stream(stream: Stream, known: Known) -> Iterator[Task]:
    """The shards of a large compressed file, cut behind the line in which each is full."""
    file = stream.file
    whole = InputPart(str(file.path), file.name, "jsonl", 0, stream.shard_bytes, file.hash)
    return feed(f"{stream.number:05d}", whole, lambda: _payloads(stream), known)


def feed(
    name: str,
    whole: InputPart,
    payloads: Callable[[], Iterator[tuple[bytes, int]]],
    known: Known,
    first_line: int = 0,
) -> Iterator[Task]:
    """A shard for each payload, which comes with the bytes of input that it took."""
    count = known.num_parts(name, whole)
    if count is not None:
        yield from (Task(_shard(name, whole, part, 0, 0)) for part in range(count))
        return
    lines, count = first_line, 0
    for payload, size in payloads():
        yield Task(_shard(name, whole, count, size, lines), payload)
        lines += payload.count(b"\n")
        count += 1
    known.set_parts(name, whole, count)


def _shard(name: str, whole: InputPart, part: int, size: int, lines: int) -> Shard:
    return Shard(f"{name}-{part:05d}.ds", (whole,), size, True, lines, (str(part),))


def _payloads(stream: Stream) -> Iterator[tuple[bytes, int]]:
    path = stream.file.path
    with reading(path), open(path, "rb", buffering=BUFFER_BYTES) as raw:
        text = open_input(path, raw)
        before = 0
        while payload := text.read(stream.shard_bytes):
            if not payload.endswith(b"\n"):
                rest = text.readline(MOST_BYTES)
                if len(rest) == MOST_BYTES:
                    pass_rest_of_line(text)
                payload += rest
            yield payload, raw.tell() - before
            before = raw.tell()

"""Compressed files -> their bytes, a buffer at a time: memory never grows with what a file expands to.

A few kB of zstd may hold gigabytes. The format is made of blocks, each of which gives 128 kB at most, so that a file
is handed to the library block by block. Python's gzip bounds its output itself.
"""

import gzip
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

COMPRESSED = (".gz", ".zst")
BUFFER_BYTES = 1 << 20
LARGEST_WINDOW = 2**31  # as zstd --long=31 writes; memory is used as far as the output goes

ZSTD_MAGIC = 0xFD2FB528
SKIPPABLE_MAGIC = range(0x184D2A50, 0x184D2A60)  # frames of metadata
RLE_BLOCK = 1  # one byte, repeated


class ZstdReader(io.RawIOBase):
    """A .zst, frame after frame; one that is truncated is an error, which the library's own reader ignores."""

    def __init__(self, file: BinaryIO) -> None:
        self._chunks = _chunks(file)
        self._ready = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, into: Any) -> int:
        """Decompress into a buffer; 0 at the end of the last frame."""
        while not self._ready:
            chunk = next(self._chunks, None)
            if chunk is None:
                return 0
            self._ready = memoryview(chunk)
        count = min(len(into), len(self._ready))
        into[:count] = self._ready[:count]
        self._ready = self._ready[count:]
        return count


def _chunks(file: BinaryIO) -> Iterator[bytes]:
    """What each block of each frame expands to."""
    import zstandard

    opened = zstandard.ZstdDecompressor(max_window_size=LARGEST_WINDOW)
    while start := file.read(4):
        magic = int.from_bytes(start, "little")
        if magic in SKIPPABLE_MAGIC:
            _skip(file, int.from_bytes(_exactly(file, 4), "little"))
            continue
        if magic != ZSTD_MAGIC:
            if len(start) < 4:
                raise EOFError("it ends within a frame")
            raise zstandard.ZstdError("it is not in the format of zstd")
        flags = _exactly(file, 1)
        frame = opened.decompressobj()
        yield frame.decompress(start + flags + _exactly(file, _header_bytes(flags[0])))
        is_last = False
        while not is_last:
            head = _exactly(file, 3)
            block = int.from_bytes(head, "little")
            is_last, kind, size = bool(block & 1), block >> 1 & 3, block >> 3
            yield frame.decompress(head + _exactly(file, 1 if kind == RLE_BLOCK else size))
        if flags[0] & 4:  # a checksum follows
            yield frame.decompress(_exactly(file, 4))


def _header_bytes(flags: int) -> int:
    """Bytes of a frame's header behind its flags: the window, a dictionary's number, the size of the content."""
    is_single = flags >> 5 & 1
    content = (1 if is_single else 0, 2, 4, 8)[flags >> 6]
    return (0 if is_single else 1) + (0, 1, 2, 4)[flags & 3] + content


def _exactly(file: BinaryIO, count: int) -> bytes:
    content = file.read(count)
    if len(content) < count:
        raise EOFError("it ends within a frame")
    return content


def _skip(file: BinaryIO, count: int) -> None:
    while count:
        count -= len(_exactly(file, min(count, BUFFER_BYTES)))


def open_input(path: Path, raw: BinaryIO) -> BinaryIO:
    """The text of an open file, decompressed by its ending."""
    if path.suffix == ".gz":
        return io.BufferedReader(gzip.GzipFile(fileobj=raw), BUFFER_BYTES)
    if path.suffix == ".zst":
        return io.BufferedReader(ZstdReader(raw), BUFFER_BYTES)
    return raw

"""Parts of input files -> records: lines of JSONL, rows of Parquet, whole texts; and what is wrong with the others.

A record is what a line or row holds: a JSON object from JSONL, the text itself from the rest. Broken lines are found
one by one, with their number; what nothing can read (a truncated gzip, a corrupt Parquet file) is an error that names
the file. Sources and tasks read their files through here, so that both refuse the same ones in the same words.
"""

import gzip
import io
import json
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Literal

import orjson

from trivium.errors import SourceError

Reader = Literal["jsonl", "parquet", "text", "rows"]
MOST_BYTES = 200_000_000  # of a document
BATCH_BYTES = 1 << 20
BUFFER_BYTES = 1 << 20

BROKEN = "broken JSON"
NOT_UTF8 = "invalid UTF-8"
TOO_LONG = "over 200 MB"
EMPTY = "empty"
BINARY = "a binary file"
NOT_AN_OBJECT = "not a JSON object"


class BadLineError(ValueError):
    """Why a line holds no record."""


@dataclass(frozen=True, slots=True)
class InputPart:
    """A part of one input file: bytes of JSONL, row groups of Parquet, rows of a dataset, or all of a text."""

    path: str
    name: str
    reader: Reader
    start: int
    stop: int
    hash: str


@dataclass(slots=True)
class InputRecords:
    """Some neighbouring records of a part, and the lines that hold none: their numbers in the part, and why."""

    records: list[Any] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    bad: list[tuple[int, str]] = field(default_factory=list)
    text_bytes: int = 0
    input_bytes: int = 0

    def add(self, number: int, record: Any) -> None:
        self.records.append(record)
        self.numbers.append(number)


def texts_of(found: InputRecords, column: str) -> list[str]:
    """The texts of records, in a column where they are tables; those without one go to the bad ones."""
    texts = []
    for number, record in zip(found.numbers, found.records, strict=True):
        text = record.get(column) if isinstance(record, dict) else record
        if type(text) is str and text:
            texts.append(text)
        else:
            found.bad.append((number, _fault(record, text, column)))
    return texts


def _fault(record: Any, text: Any, column: str) -> str:
    """Why a record has no text."""
    if text == "":
        return EMPTY
    if text is None and (record is None or isinstance(record, dict)):
        return f'no "{column}"'
    return f'"{column}" is not text' if isinstance(record, dict) else NOT_AN_OBJECT


class ZstdReader(io.RawIOBase):
    """A .zst, frame after frame; one that is truncated is an error, which the library's own reader ignores."""

    def __init__(self, file: BinaryIO) -> None:
        import zstandard

        self._file = file
        self._open = zstandard.ZstdDecompressor(max_window_size=2**31).decompressobj
        self._frame: Any = self._open()
        self._started = False
        self._ready = b""

    def readable(self) -> bool:
        return True

    def readinto(self, into: Any) -> int:
        """Decompress into a buffer; 0 at the end of the last frame."""
        while not self._ready:
            if self._frame.eof:
                rest, self._frame, self._started = self._frame.unused_data, self._open(), False
            else:
                rest = b""
            rest = rest or self._file.read(BUFFER_BYTES)
            if not rest:
                if self._started:
                    raise EOFError("it ends within a frame")
                return 0
            self._started = True
            self._ready = self._frame.decompress(rest)
        count = min(len(into), len(self._ready))
        into[:count] = self._ready[:count]
        self._ready = self._ready[count:]
        return count


def open_input(path: Path, raw: BinaryIO) -> BinaryIO:
    """The text of an open file, decompressed by its ending."""
    if path.suffix == ".gz":
        return io.BufferedReader(gzip.GzipFile(fileobj=raw), BUFFER_BYTES)
    if path.suffix == ".zst":
        return io.BufferedReader(ZstdReader(raw), BUFFER_BYTES)
    return raw


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Whatever a damaged file makes the libraries raise is one error that names it."""
    try:
        yield
    except Exception as error:
        # These libraries may not be loaded, so that their errors are known by the module they come from.
        of_library = type(error).__module__.partition(".")[0] in ("zstandard", "pyarrow")
        if not of_library and not isinstance(error, EOFError | OSError | zlib.error):
            raise
        reason = str(error).rstrip(".") or type(error).__name__
        what = f"cannot be read: {reason}. It is truncated or damaged: copy it again, or take it out."
        raise SourceError(f"{path}: {what}") from error


def read_raw_lines(path: Path) -> Iterator[bytes]:
    """The lines of a JSONL file, decompressed; of one over the limit its first bytes, which `parse_line` refuses."""
    with reading(path), open(path, "rb", buffering=BUFFER_BYTES) as raw:
        file = open_input(path, raw)
        while line := file.readline(MOST_BYTES + 1):
            if _is_too_long(line):
                skip_rest_of_line(file)
            yield line


def parse_line(line: bytes) -> Any:
    """The record of a line of JSONL; BadLineError where it holds none."""
    if _is_too_long(line):
        raise BadLineError(TOO_LONG)
    try:
        return orjson.loads(line)
    except ValueError:
        return _parse_odd_line(line)


def _parse_odd_line(line: bytes) -> Any:
    """The record of a line that the fast parser refuses: Python writes NaN into JSON."""
    try:
        record = json.loads(line)
        json.dumps(record, ensure_ascii=False).encode()  # half a surrogate pair is not text
        return record
    except UnicodeDecodeError:
        raise BadLineError(NOT_UTF8) from None
    except (ValueError, RecursionError):
        raise BadLineError(BROKEN) from None


def _is_too_long(line: bytes) -> bool:
    return len(line) > MOST_BYTES and not line.endswith(b"\n")


def read_part(part: InputPart, column: str) -> Iterator[InputRecords]:
    path = Path(part.path)
    if part.reader == "jsonl":
        return read_lines(path, part.start, part.stop)
    if part.reader == "parquet":
        return read_parquet(path, part.start, part.stop, column)
    return read_text(path)


def read_lines(path: Path, start: int, stop: int) -> Iterator[InputRecords]:
    """Records of the lines of a JSONL file that begin between two of its bytes."""
    with reading(path), open(path, "rb", buffering=BUFFER_BYTES) as raw:
        file = open_input(path, raw)
        if start:
            raw.seek(start - 1)
            skip_rest_of_line(raw)  # the line that began before belongs to the part before
        end = stop if file is raw else None
        yield from _records(file, raw, end)


def read_sent_lines(lines: bytes) -> Iterator[InputRecords]:
    """Records of lines that another process has read."""
    file = io.BytesIO(lines)
    yield from _records(file, file, None)


def _records(file: BinaryIO, raw: BinaryIO, end: int | None) -> Iterator[InputRecords]:
    """Batches of records until the file ends, or a line begins at `end` or behind."""
    number = 0
    place, before = (raw.tell() if end is not None else 0), raw.tell()
    found = InputRecords()
    while end is None or place < end:
        line = file.readline(MOST_BYTES + 1)
        if not line:
            break
        number += 1
        place += len(line)
        if _is_too_long(line):
            place += skip_rest_of_line(file)
        else:
            found.text_bytes += len(line)
        try:
            found.add(number, parse_line(line))
        except BadLineError as error:
            if line.strip():
                found.bad.append((number, str(error)))
        if found.text_bytes > BATCH_BYTES:
            now = raw.tell()
            found.input_bytes, before = now - before, now
            yield found
            found = InputRecords()
    found.input_bytes = raw.tell() - before
    yield found


def skip_rest_of_line(file: BinaryIO) -> int:
    """Skip what is left of a line, without holding it, and return its bytes."""
    count = 0
    while part := file.readline(BUFFER_BYTES):
        count += len(part)
        if part.endswith(b"\n"):
            break
    return count


def read_text(path: Path) -> Iterator[InputRecords]:
    """A whole file as one record."""
    found = InputRecords(input_bytes=path.stat().st_size)
    with reading(path), open(path, "rb") as raw:
        content = open_input(path, raw).read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        found.bad.append((1, TOO_LONG))
    elif b"\0" in content:
        found.bad.append((1, BINARY))
    else:
        try:
            found.add(1, content.decode())
            found.text_bytes = len(content)
        except UnicodeDecodeError:
            found.bad.append((1, NOT_UTF8))
    yield found


def lines_before(path: Path, reader: str, start: int) -> int:
    """Lines or rows of a file before a place at which it was cut."""
    if not start:
        return 0
    if reader == "parquet":
        metadata = open_parquet(path).metadata
        return sum(metadata.row_group(group).num_rows for group in range(start))
    count = place = 0
    with open(path, "rb") as file:
        while place < start and (content := file.read(min(BUFFER_BYTES, start - place))):
            count += content.count(b"\n")
            place += len(content)
        whole = content.endswith(b"\n")
    return count if whole else count + 1  # the line that was cut belongs to the part before


def row_group_sizes(path: Path) -> list[int]:
    """Bytes of each row group of a Parquet file, as they are in memory."""
    metadata = open_parquet(path).metadata
    return [metadata.row_group(group).total_byte_size for group in range(metadata.num_row_groups)]


def open_parquet(path: Path) -> Any:
    import pyarrow.parquet

    with reading(path):
        return pyarrow.parquet.ParquetFile(path, memory_map=True)


def read_parquet(path: Path, start: int, stop: int, column: str) -> Iterator[InputRecords]:
    """Rows of some row groups; a row's text is its record, None where it has none."""
    file = open_parquet(path)
    names = file.schema_arrow.names
    if column not in names:
        what = f'It has {", ".join(names)}: write column = "{names[0]}" or another.'
        raise SourceError(f'{path}: has no column "{column}". {what}')
    kind = file.schema_arrow.field(column).type
    if not _holds_text(kind):
        raise SourceError(f'{path}: column "{column}" holds {kind}, and text is needed. Name another column.')
    number, sizes = 0, row_group_sizes(path)
    with reading(path):
        for group in range(start, stop):
            unreported = sizes[group]
            for batch in file.iter_batches(row_groups=[group], columns=[column], batch_size=1024):
                found = text_records(batch.column(0), number)
                number += batch.num_rows
                found.input_bytes, unreported = unreported, 0
                yield found


def _holds_text(kind: Any) -> bool:
    import pyarrow.types

    kind = kind.value_type if pyarrow.types.is_dictionary(kind) else kind
    types = pyarrow.types
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def text_records(column: Any, first: int) -> InputRecords:
    """The texts of a column of Arrow, numbered from the one after `first` on."""
    found = InputRecords(text_bytes=column.nbytes)
    try:
        texts = column.to_pylist()
    except UnicodeDecodeError:
        texts = [_decoded(value) for value in column]
    for number, text in enumerate(texts, first + 1):
        if isinstance(text, bytes):
            found.bad.append((number, NOT_UTF8))
        elif isinstance(text, str) and len(text) > MOST_BYTES // 4 and len(text.encode()) > MOST_BYTES:
            found.bad.append((number, TOO_LONG))
        else:
            found.add(number, text)
    return found


def _decoded(value: Any) -> str | bytes | None:
    try:
        text: str | None = value.as_py()
    except UnicodeDecodeError:
        return b""
    return text

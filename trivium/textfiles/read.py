"""Parts of input files -> records: lines of JSONL, rows of Parquet, whole texts; and what is wrong with the others.

A record is what a line or row holds: a JSON object from JSONL, the text itself from the rest. Broken lines are found
one by one, with their number; what nothing can read (a truncated gzip, a corrupt Parquet file) is an error that names
the file. Sources and tasks read their files through here, so that both refuse the same ones in the same words.
"""

import io
import json
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple

import orjson

from trivium.errors import SourceError
from trivium.textfiles.decompress import BUFFER_BYTES, open_input
from trivium.textfiles.score import ScoreRange

Reader = Literal["jsonl", "parquet", "text", "rows"]
MOST_BYTES = 200_000_000  # of a document
MOST_VALUES = 20_000_000  # of a line of JSON: each takes 64 bytes, where it may have been two in the file
BATCH_BYTES = 1 << 20
BATCH_ROWS, BATCH_TEXT = 1024, 64 << 20  # of Parquet: rows that are in memory at once, and their bytes

SHOWN_NAMES, SHOWN_NAME = 8, 40  # of a record's columns, and characters of each
BYTE_ORDER_MARK = b"\xef\xbb\xbf"  # some editors begin a file with it

BROKEN = "broken JSON"
NOT_UTF8 = "invalid UTF-8"
TOO_LONG = "over 200 MB"
TOO_MANY = "over 20 million values"
EMPTY = "empty"
ABSENT = re.compile(r'no "(.*?)", but (.+)')  # the column, and those that a record has instead
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


class InputLine(NamedTuple):
    """A line or row of a part of a file; which one of the file it is, is counted when it is shown."""

    name: str
    line: int  # within the part, from 1
    path: str
    reader: str
    start: int  # where in the file the part begins

    def __str__(self) -> str:
        if self.reader == "text":
            return self.name
        before = lines_before(Path(self.path), self.reader, self.start)
        return f"{self.name} {'line' if self.reader == 'jsonl' else 'row'} {before + self.line:,}"


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


def texts_of(found: InputRecords, column: str, score: ScoreRange | None = None) -> dict[int, str]:
    """The texts of records by number, in a column where they are tables; those without one go to the bad ones.

    So do tables whose score is not in a range; of records that are texts, their reader has looked at it.
    """
    texts = {}
    absent = ""
    for number, record in zip(found.numbers, found.records, strict=True):
        text = record.get(column) if isinstance(record, dict) else record
        if type(text) is str and text:
            reason = score.reason(record.get(score.column)) if score and isinstance(record, dict) else None
            if reason is None:
                texts[number] = text
            else:
                found.bad.append((number, reason))
        elif text is None and (record is None or isinstance(record, dict)):
            absent = absent or _absent(record, column)  # one reason for all records that were read together
            found.bad.append((number, absent))
        elif text == "":
            found.bad.append((number, EMPTY))
        else:
            found.bad.append((number, f'"{column}" is not text' if isinstance(record, dict) else NOT_AN_OBJECT))
    return texts


def _absent(record: dict[str, Any] | None, column: str) -> str:
    """`no "content", but id, text`: what could have been meant, in as many columns as fit into a line."""
    names = [] if record is None or column in record else [name for name in record if len(name) <= SHOWN_NAME]
    more = ", ..." if len(names) > SHOWN_NAMES else ""
    return f'no "{column}"' + (f", but {', '.join(names[:SHOWN_NAMES])}{more}" if names else "")


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
    if len(line) > MOST_VALUES and sum(map(line.count, (b",", b"[", b"{"))) > MOST_VALUES:
        raise BadLineError(TOO_MANY)
    line = line.removeprefix(BYTE_ORDER_MARK)
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


def read_part(part: InputPart, column: str, score: ScoreRange | None = None) -> Iterator[InputRecords]:
    """The records of a part; rows of Parquet whose score is not in a range are left out."""
    path = Path(part.path)
    if part.reader == "jsonl":
        return read_lines(path, part.start, part.stop)
    if part.reader == "parquet":
        return read_parquet(path, part.start, part.stop, column, score)
    if score is not None:
        what = "is plain text, which has no scores. Leave the source's score out, or name JSONL or Parquet."
        raise SourceError(f"{path}: {what}")
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
            found.add(1, content.decode("utf-8-sig"))
            found.text_bytes = len(content)
        except UnicodeDecodeError:
            found.bad.append((1, NOT_UTF8))
    yield found


def lines_before(path: Path, reader: str, start: int) -> int:
    """Lines or rows of a file before a place at which it was cut."""
    if not start or reader == "rows":
        return start
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


def open_parquet(path: Path, column: str | None = None) -> Any:
    """A Parquet file; the values of `column` as its pages store them, each once."""
    import pyarrow.parquet

    with reading(path):
        stored = None if column is None else [column]
        return pyarrow.parquet.ParquetFile(path, memory_map=True, read_dictionary=stored)


def read_parquet(
    path: Path, start: int, stop: int, column: str, score: ScoreRange | None = None
) -> Iterator[InputRecords]:
    """Rows of some row groups; a row's text is its record, None where it has none."""
    file = open_parquet(path)
    names = file.schema_arrow.names
    columns = [column] if score is None else [column, score.column]
    for name in columns:
        if name not in names:
            what = f'It has {", ".join(names)}: write column = "{names[0]}" or another.'
            raise SourceError(f'{path}: has no column "{name}". {what}')
    kind = file.schema_arrow.field(column).type
    if not _holds_text(kind):
        raise SourceError(f'{path}: column "{column}" holds {kind}, and text is needed. Name another column.')
    number, sizes = 0, row_group_sizes(path)
    with reading(path):
        for group in range(start, stop):
            unreported = sizes[group]
            rows = _batch_rows(path, group, column)
            for batch in file.iter_batches(row_groups=[group], columns=columns, batch_size=rows):
                found = text_records(batch.column(column), number)
                if score is not None:
                    score.leave_out(found, number, batch.column(score.column).to_pylist())
                number += batch.num_rows
                found.input_bytes, unreported = unreported, 0
                yield found


def _batch_rows(path: Path, group: int, column: str) -> int:
    """Rows of a row group to hold at once: a value that is stored once, and named by every row, is copied for each."""
    import pyarrow.compute

    file = open_parquet(path, column)
    stored = file.metadata.row_group(group)
    chunks = [stored.column(number) for number in range(stored.num_columns)]
    chunk = next(chunk for chunk in chunks if chunk.path_in_schema == column)
    largest = chunk.total_uncompressed_size // max(1, chunk.num_values)
    if chunk.has_dictionary_page:
        first = next(file.iter_batches(batch_size=1, row_groups=[group], columns=[column]), None)
        lengths = [] if first is None else pyarrow.compute.binary_length(first.column(0).dictionary).drop_null()
        largest = max(largest, pyarrow.compute.max(lengths).as_py() if len(lengths) else 0)
    return int(min(BATCH_ROWS, max(1, BATCH_TEXT // max(1, largest))))


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

"""Files of records, JSONL or Parquet -> whether they are conversations or text, in which column, and how much of it."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from trivium.errors import SourceError, TriviumError
from trivium.init.found import Estimate, FoundFile
from trivium.init.whole import TEXT_BYTES, TEXTS
from trivium.text.conversation import read_messages
from trivium.textfiles.decompress import COMPRESSED
from trivium.textfiles.read import BadLineError, open_parquet, parse_line, read_raw_lines

FIRST = 20  # records that tell what a file is
TRIED, TRIED_RECORDS = 16, 200  # files of a source, and records of each, that tell how much it has
LONGEST_LINE = 1 << 22
USUAL = ("text", "content", "body", "document", "raw_content", "markdown", "code", "article", "story")
PAIRS = ({"prompt", "completion"}, {"prompt", "response"}, {"instruction", "output"}, {"question", "answer"})
NOT_MESSAGES = 'conversations in another form: write each line as {"messages": [{"role": ..., "content": ...}]}'
NOT_JSONL = "one JSON value over many lines: write a record on each line (.jsonl)"


@dataclass(frozen=True, slots=True)
class Records:
    """What the records of a file are: text in a column, or (None) conversations."""

    column: str | None


def look_at_records(file: FoundFile, ending: str) -> Records | str:
    """What a file's first records are, or why it is passed over."""
    if ending == ".parquet":
        return _look_at_parquet(file)
    parsed = [record for record in _first_records(file, FIRST) if record is not None]
    if not parsed or (ending == ".json" and len(parsed) == 1):
        return NOT_JSONL if ending == ".json" else "its first lines are not JSON"
    return look_at_rows(parsed)


def look_at_rows(rows: Sequence[Any]) -> Records | str:
    """What some records are."""
    if any(isinstance(row, list) or "messages" in row for row in rows if isinstance(row, list | dict)):
        return Records(None) if any(map(_is_conversation, rows)) else NOT_MESSAGES
    tables = [row for row in rows if isinstance(row, Mapping)]
    names = Counter(name for row in tables for name in row)
    if "conversations" in names or any(pair <= set(names) for pair in PAIRS):
        return NOT_MESSAGES
    column = text_column(tables)
    shown = ", ".join(name for name in names if len(name) <= 40)[:80]
    return Records(column) if column is not None else f"no column of text, but {shown or 'nothing'}"


def text_column(rows: Sequence[Mapping[str, Any]]) -> str | None:
    """The column that holds the text: one with a usual name, else the one with the longest texts."""
    lengths: Counter[str] = Counter()
    for row in rows:
        lengths.update({name: len(value) for name, value in row.items() if isinstance(value, str)})
    usual = next((name for name in USUAL if lengths[name]), None)
    longest = lengths.most_common(1)
    return usual or (longest[0][0] if longest and longest[0][1] else None)


def _is_conversation(row: Any) -> bool:
    try:
        return bool(read_messages(row))
    except TriviumError:
        return False


def _first_records(file: FoundFile, count: int) -> Iterator[Any]:
    """The first records of a JSONL file; None for a line that holds none."""
    for line in islice(read_raw_lines(file.path), count):
        if line.strip():
            try:
                yield parse_line(line) if len(line) <= LONGEST_LINE else None
            except BadLineError:
                yield None


def _look_at_parquet(file: FoundFile) -> Records | str:
    names = [name for name, kind in parquet_columns(file).items() if kind]
    if "messages" in parquet_columns(file):
        return "conversations in Parquet: write them as JSONL"
    column = next((name for name in USUAL if name in names), None)
    if column is None and names:
        opened = open_parquet(file.path)
        rows = next(opened.iter_batches(batch_size=FIRST, columns=names)).to_pylist() if opened.num_row_groups else []
        column = text_column(rows)
    return Records(column) if column is not None else f"no column of text, but {', '.join(parquet_columns(file))[:80]}"


def parquet_columns(file: FoundFile) -> dict[str, bool]:
    """The columns of a Parquet file, and whether each holds text."""
    import pyarrow as pa

    schema = open_parquet(file.path).schema_arrow
    return {each.name: pa.types.is_string(each.type) or pa.types.is_large_string(each.type) for each in schema}


def estimate_records(files: Sequence[FoundFile], column: str | None) -> Estimate:
    """How many records files hold, and how much text, by some records of some files."""
    tried = files[:: max(1, len(files) // TRIED)]
    documents = text_bytes = lines = bad = seen = 0.0
    texts: list[str] = []
    for file in tried:
        if file.path.suffix == ".parquet":
            rows, size = _parquet_size(file, column or "")
        else:
            found = list(_sized_records(file, column))
            whole = len(found) < TRIED_RECORDS
            held = [text for _, text in found if text]
            read = sum(size for size, _ in found)
            grown = file.size * (4 if file.path.suffix in COMPRESSED else 1)  # text shrinks to a quarter
            times = 1.0 if whole else max(1.0, grown / max(1, read))
            rows, size = len(held) * times, sum(len(text.encode(errors="replace")) for text in held) * times
            lines, bad = lines + len(found), bad + len(found) - len(held)
            texts += [text[:TEXT_BYTES] for text in held[:: max(1, len(held) // TEXTS)]]
        documents, text_bytes, seen = documents + rows, text_bytes + size, seen + file.size
    times = sum(file.size for file in files) / max(1.0, seen)
    kept = tuple(texts[:: max(1, len(texts) // TEXTS)])
    return Estimate(round(documents * times), round(text_bytes * times), bad=bad / max(1.0, lines), texts=kept)


def _sized_records(file: FoundFile, column: str | None) -> Iterator[tuple[int, str]]:
    """The bytes of each of the first lines, and its text: empty where it holds no document."""
    for line in islice(read_raw_lines(file.path), TRIED_RECORDS):
        if not line.strip():
            continue
        try:
            record = parse_line(line)
        except BadLineError:
            record = None
        yield len(line), _text(record, column)


def _text(record: Any, column: str | None) -> str:
    if column is not None:
        value = record.get(column) if isinstance(record, Mapping) else None
        return value if isinstance(value, str) else ""
    try:
        return "\n".join(message.text for message in read_messages(record))
    except TriviumError:
        return ""


def _parquet_size(file: FoundFile, column: str) -> tuple[float, float]:
    """Rows of a Parquet file, and the bytes of a column, both from its footer."""
    metadata = open_parquet(file.path).metadata
    place = metadata.schema.to_arrow_schema().get_field_index(column)
    if place < 0:
        raise SourceError(f'{file.path}: has no column "{column}", which the files beside it have. Take it out.')
    groups = [metadata.row_group(number).column(place) for number in range(metadata.num_row_groups)]
    return metadata.num_rows, sum(group.total_uncompressed_size for group in groups)

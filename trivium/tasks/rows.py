"""The rows of a task's dataset by number: of files of JSONL or Parquet on disk, or of the Hub.

Files are read as sources read them (`textfiles.read`). Lines are held as they are and parsed when asked for, Parquet is
held decoded; the Hub's rows are the package datasets', mapped. A bad row is an error that names its file and line.
"""

import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, Protocol

from trivium.errors import SourceError
from trivium.textfiles.decompress import COMPRESSED
from trivium.textfiles.inputs import LINES
from trivium.textfiles.read import (
    NOT_AN_OBJECT,
    NOT_UTF8,
    BadLineError,
    open_parquet,
    parse_line,
    read_raw_lines,
    reading,
)

ENDINGS = (".parquet", *(lines + packed for lines in LINES for packed in ("", *COMPRESSED)))


class TaskRows(Protocol):
    """Rows by number."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> dict[str, Any]: ...


class TaskFiles:
    """The rows of some files, one after the other."""

    def __init__(self, paths: Iterable[Path]) -> None:
        self._paths = tuple(paths)
        self._files = [ParquetRows(path) if path.suffix == ".parquet" else JsonlRows(path) for path in self._paths]
        self._ends = list(accumulate(map(len, self._files)))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, index: int, /) -> dict[str, Any]:
        file, number = self._locate(index)
        try:
            return self._files[file][number]
        except BadLineError as error:
            raise SourceError(f"{self.where(index)}: {error}. Fix it, or take it out.") from None

    def where(self, index: int) -> str:
        """The file and line of a row."""
        file, number = self._locate(index)
        return f"{self._paths[file]} {self._files[file].where(number)}"

    def _locate(self, index: int) -> tuple[int, int]:
        file = bisect_right(self._ends, index)
        return file, index - (self._ends[file - 1] if file else 0)


class JsonlRows:
    """The lines of a JSONL file that are not blank; a list is a conversation's messages."""

    def __init__(self, path: Path) -> None:
        self._lines = [(number, line) for number, line in enumerate(read_raw_lines(path), 1) if line.strip()]

    def __len__(self) -> int:
        return len(self._lines)

    def __getitem__(self, index: int, /) -> dict[str, Any]:
        row = parse_line(self._lines[index][1])
        if not isinstance(row, dict | list):
            raise BadLineError(NOT_AN_OBJECT)
        return row if isinstance(row, dict) else {"messages": row}

    def where(self, index: int) -> str:
        return f"line {self._lines[index][0]:,}"


class ParquetRows:
    """The rows of a Parquet file."""

    def __init__(self, path: Path) -> None:
        with reading(path):
            self._table = open_parquet(path).read()

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def __getitem__(self, index: int, /) -> dict[str, Any]:
        try:
            (row,) = self._table.slice(index, 1).to_pylist()
        except UnicodeDecodeError:
            raise BadLineError(NOT_UTF8) from None
        return dict(row)

    def where(self, index: int) -> str:
        return f"row {index + 1:,}"


def local_rows(paths: Sequence[str], split: str, subset: str | None) -> TaskFiles:
    """The rows of files; of a folder those that are named after the split, in the subset's folder if there is one."""
    found: list[Path] = []
    for each in map(Path, paths):
        if each.is_file():
            found.append(each)
        elif each.is_dir():
            found += _in_folder(each, split, subset)
        else:
            raise SourceError(f"{each}: is not there. Name a JSONL or Parquet file, or a folder of them.")
    return TaskFiles(found)


def _in_folder(folder: Path, split: str, subset: str | None) -> list[Path]:
    files = sorted(file for file in folder.rglob("*") if file.is_file() and file.name.endswith(ENDINGS))
    names = {file: file.relative_to(folder).as_posix() for file in files}
    if subset is not None and any(subset in Path(name).parts for name in names.values()):
        files = [file for file in files if subset in Path(names[file]).parts]
    of_split = re.compile(rf"(^|[-_./]){re.escape(split)}([-_.]|$)")
    files = [file for file in files if of_split.search(file.name) or split in Path(names[file]).parts[:-1]]
    if not files:
        raise SourceError(f'{folder}: has no files of the split "{split}". Name its file, such as {split}.jsonl.')
    return files


def hub_rows(dataset: str, subset: str | None, split: str) -> TaskRows:
    """The rows of a dataset on the Hub, downloaded once by the package datasets."""
    try:
        import datasets
    except ImportError:
        raise SourceError(f"{dataset}: the package datasets is not installed: pip install 'trivium[hf]'.") from None
    try:
        rows: TaskRows = datasets.load_dataset(dataset, subset, split=split)
    except Exception as error:  # of the network, of the Hub, of the cache: all mean that it cannot be had
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        raise SourceError(f"{dataset}: cannot be had from the Hub: {reason}. Write path = a folder of it.") from None
    return rows

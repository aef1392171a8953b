"""The rows of a dataset: JSONL (also .gz, .zst) or Parquet on disk, or the Hub.

Lines are kept as they are and read when asked for; Parquet is mapped; the Hub's files are the package datasets'.
"""

import gzip
import json
import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, Protocol

from trivium.errors import SourceError

KNOWN = (".jsonl", ".json", ".jsonl.gz", ".json.gz", ".jsonl.zst", ".json.zst", ".parquet")


class Rows(Protocol):
    """Rows by number."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> dict[str, Any]: ...


class FileRows:
    """The rows of some files, one after the other."""

    def __init__(self, files: Iterable[Path]) -> None:
        self._files = [_open_parquet(file) if file.suffix == ".parquet" else JsonLines(file) for file in files]
        self._ends = list(accumulate(len(rows) for rows in self._files))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, index: int, /) -> dict[str, Any]:
        place = bisect_right(self._ends, index)
        return self._files[place][index - (self._ends[place - 1] if place else 0)]


class JsonLines:
    """The lines of a JSONL file that are not blank."""

    def __init__(self, path: Path) -> None:
        self._path = path
        lines = enumerate(_content(path).splitlines(), 1)
        self._lines = [(number, line) for number, line in lines if line.strip()]

    def __len__(self) -> int:
        return len(self._lines)

    def __getitem__(self, index: int, /) -> dict[str, Any]:
        number, line = self._lines[index]
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if not isinstance(row, dict | list):
            raise SourceError(f"{self._path}: line {number:,} is no JSON. Mend it, or take it out.")
        return row if isinstance(row, dict) else {"messages": row}


class ParquetRows:
    """The rows of a Parquet file."""

    def __init__(self, table: Any) -> None:
        self._table = table

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def __getitem__(self, index: int, /) -> dict[str, Any]:
        (row,) = self._table.slice(index, 1).to_pylist()
        return dict(row)


def _open_parquet(path: Path) -> Rows:
    import pyarrow
    import pyarrow.parquet

    try:
        return ParquetRows(pyarrow.parquet.read_table(path, memory_map=True))
    except (pyarrow.ArrowException, OSError) as error:
        raise SourceError(f"{path}: is no Parquet file: {error}. Name another.") from None


def _content(path: Path) -> bytes:
    try:
        if path.suffix == ".gz":
            return gzip.decompress(path.read_bytes())
        if path.suffix == ".zst":
            import zstandard

            with open(path, "rb") as file:
                return zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True).read()
        return path.read_bytes()
    except Exception as error:  # each library has its own for what it cannot unpack
        raise SourceError(f"{path}: cannot be read: {error}. Name another file.") from None


def local_rows(paths: Sequence[str], split: str, subset: str | None) -> FileRows:
    """The rows of files; of a folder those files whose names say the split, in the subset's folder if there is one."""
    found: list[Path] = []
    for each in map(Path, paths):
        if each.is_file():
            found.append(each)
        elif each.is_dir():
            found += _in_folder(each, split, subset)
        else:
            raise SourceError(f"{each}: is not there. Name a JSONL or Parquet file, or a folder of them.")
    return FileRows(found)


def _in_folder(folder: Path, split: str, subset: str | None) -> list[Path]:
    files = sorted(file for file in folder.rglob("*") if file.is_file() and file.name.endswith(KNOWN))
    names = {file: file.relative_to(folder).as_posix() for file in files}
    if subset is not None and any(subset in Path(name).parts for name in names.values()):
        files = [file for file in files if subset in Path(names[file]).parts]
    of_split = re.compile(rf"(^|[-_./]){re.escape(split)}([-_.]|$)")
    files = [file for file in files if of_split.search(file.name) or split in Path(names[file]).parts[:-1]]
    if not files:
        raise SourceError(f'{folder}: has no files of the split "{split}". Name its file, such as {split}.jsonl.')
    return files


def hub_rows(dataset: str, subset: str | None, split: str) -> Rows:
    """The rows of a dataset on the Hub, downloaded once by the package datasets."""
    try:
        import datasets
    except ImportError:
        raise SourceError(f"{dataset}: the package datasets is not installed: pip install 'trivium[hf]'.") from None
    try:
        rows: Rows = datasets.load_dataset(dataset, subset, split=split)
    except Exception as error:  # of the network, of the Hub, of the cache: all mean that it cannot be had
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        raise SourceError(f"{dataset}: cannot be had from the Hub: {reason}. Write path = a folder of it.") from None
    return rows

"""Paths of text -> input files: what each is, how large, and a hash of its content.

| name ends in                      | is read as                                             |
|-----------------------------------|--------------------------------------------------------|
| .jsonl .ndjson .json              | a document a line (.json: where its first line is one) |
| .parquet                          | a document a row                                       |
| anything else                     | one document                                           |

Each but Parquet may be compressed: .gz, .zst. Hashes are made at the speed of the disk and kept in the cache
folder with the files' sizes and times of change, so that unchanged files are hashed once.
"""

import json
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from trivium.files import FileStamp, cache_folder, hash_file, hash_json, keep_in_cache, read_json, stamp_of
from trivium.paths import Found, find_any, refuse_unreadable
from trivium.textfiles.decompress import COMPRESSED
from trivium.textfiles.read import BYTE_ORDER_MARK, InputPart, Reader, row_group_sizes

LINES = (".jsonl", ".ndjson", ".json")
SLICE_BYTES = 1 << 22
THREADS = 4


@dataclass(frozen=True, slots=True)
class InputFile:
    """A file of text, and what its content hashes to, where that is known."""

    path: Path
    name: str  # within the source, with forward slashes
    reader: Reader
    size: int
    hash: str = ""

    @property
    def compressed(self) -> bool:
        """Whether it is a stream that can only be read from its start."""
        return self.path.suffix in COMPRESSED


def find_inputs(paths: Sequence[str], *, hashing: bool = True) -> tuple[InputFile, ...]:
    """All files of text that the paths name, with their hashes; unless `hashing`, with those that are cached."""
    files = list_inputs(paths)
    with _listing():
        hashes = _hashes(paths, [stamp_of(file.path) for file in files], hashing=hashing)
    return tuple(replace(file, hash=hashed) for file, hashed in zip(files, hashes, strict=True))


def list_inputs(paths: Sequence[str]) -> tuple[InputFile, ...]:
    """The same without hashes, in an order that never changes by chance."""
    found = find_any(paths)
    with _listing():
        return tuple(InputFile(each.path, each.name, _reader(each), stamp_of(each.path).size) for each in found)


@contextmanager
def _listing() -> Iterator[None]:
    """A file that cannot be opened is one error that names it."""
    try:
        yield
    except OSError as error:
        refuse_unreadable(error)


def _reader(found: Found) -> Reader:
    """How a file is read, by its name; a .json by its first line too."""
    name = Path(found.path.stem) if found.path.suffix in COMPRESSED else Path(found.path.name)
    if name.suffix == ".parquet":
        return "parquet"
    if name.suffix not in LINES or (name.suffix == ".json" and not _starts_with_a_record(found.path)):
        return "text"
    return "jsonl"


def _starts_with_a_record(path: Path) -> bool:
    """Whether a .json holds a record a line, and is not one value over many lines."""
    if path.suffix in COMPRESSED:
        return True
    with open(path, "rb") as file:
        line = file.readline(SLICE_BYTES).removeprefix(BYTE_ORDER_MARK).strip()
    return line.startswith(b"{") and (line.endswith(b"}") or len(line) >= SLICE_BYTES - 2)


def _hashes(paths: Sequence[str], stamps: Sequence[FileStamp], *, hashing: bool) -> list[str]:
    """The hash of each file's content: as cached, where size and time of change are the same; else computed, or ""."""
    kept_at = cache_folder() / "hashes" / f"{hash_json([os.path.abspath(path) for path in paths])}.json"
    kept = _kept(kept_at)
    keys = [(str(stamp.path.resolve()), f"{stamp.size} {stamp.mtime_ns}") for stamp in stamps]
    known = {path: kept[path][1] for path, changed in keys if kept.get(path, [""])[0] == changed}
    missing = [path for path, _ in keys if path not in known]
    if missing and hashing:
        with ThreadPoolExecutor(min(THREADS, os.cpu_count() or 1)) as pool:
            known |= zip(missing, pool.map(hash_file, map(Path, missing)), strict=True)
        kept |= {path: [changed, known[path]] for path, changed in keys}
        keep_in_cache(kept_at, json.dumps(kept).encode())
    return [known.get(path, "") for path, _ in keys]


def _kept(path: Path) -> dict[str, list[str]]:
    try:
        content = read_json(path)
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def whole_part(file: InputFile) -> InputPart:
    return part_of(file, 0, len(row_group_sizes(file.path)) if file.reader == "parquet" else file.size)


def part_of(file: InputFile, start: int, stop: int) -> InputPart:
    """A part of a file, from one of its bytes or row groups to another."""
    return InputPart(str(file.path), file.name, file.reader, start, stop, file.hash)

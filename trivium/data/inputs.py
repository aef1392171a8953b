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
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import xxhash

from trivium.data.ends import Part, part_of
from trivium.data.find import Found, find_any
from trivium.errors import SourceError
from trivium.files import cache_folder, cached_draft

Reader = Literal["jsonl", "parquet", "text", "rows"]
LINES = (".jsonl", ".ndjson", ".json")
COMPRESSED = (".gz", ".zst")
SLICE_BYTES = 1 << 22
THREADS = 4


@dataclass(frozen=True, slots=True)
class InputFile:
    """A file of text, and what its content hashes to."""

    path: Path
    name: str  # within the source, with forward slashes
    reader: Reader
    size: int
    hash: str

    @property
    def compressed(self) -> bool:
        """Whether it is a stream that can only be read from its start."""
        return self.path.suffix in COMPRESSED


def find_inputs(paths: Sequence[str], cache: Path | None = None) -> tuple[InputFile, ...]:
    """All files of text that the paths stand for, in an order that never changes by chance."""
    found = find_any(paths)
    try:
        parts = [part_of(each.path) for each in found]
        hashes = _hashes(paths, parts, cache or cache_folder())
        return tuple(
            InputFile(each.path, each.name, _reader(each), part.size, hashed)
            for each, part, hashed in zip(found, parts, hashes, strict=True)
        )
    except OSError as error:
        raise SourceError(
            f"{error.filename}: cannot be read: {error.strerror}. Mend it, or take it out of the source."
        ) from error


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
        line = file.readline(SLICE_BYTES).strip()
    return line.startswith(b"{") and (line.endswith(b"}") or len(line) >= SLICE_BYTES - 2)


def _hashes(paths: Sequence[str], parts: Sequence[Part], cache: Path) -> list[str]:
    """The hash of each file's content: as kept, where size and time of change are the same; else made."""
    places = json.dumps([os.path.abspath(path) for path in paths])
    kept_at = cache / "hashes" / f"{xxhash.xxh3_128_hexdigest(places.encode())}.json"
    kept = _kept(kept_at)
    stamps = [(str(part.path.resolve()), f"{part.size} {part.mtime_ns}") for part in parts]
    missing = [part for part, (path, stamp) in zip(parts, stamps, strict=True) if kept.get(path, [""])[0] != stamp]
    if missing:
        with ThreadPoolExecutor(min(THREADS, os.cpu_count() or 1)) as pool:
            made = dict(zip([part.path for part in missing], pool.map(_hash, missing), strict=True))
        for part, (path, stamp) in zip(parts, stamps, strict=True):
            if part.path in made:
                kept[path] = [stamp, made[part.path]]
        with cached_draft(kept_at) as file:
            file.write(json.dumps(kept).encode())
    return [kept[path][1] for path, _ in stamps]


def _kept(path: Path) -> dict[str, list[str]]:
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _hash(part: Part) -> str:
    hasher = xxhash.xxh3_128()
    with open(part.path, "rb") as file:
        while content := file.read(SLICE_BYTES):
            hasher.update(content)
    return str(hasher.hexdigest())

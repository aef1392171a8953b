"""manifest: token files -> what a source is made of, and its fingerprint.

A source that we prepared has a `manifest.json` beside its files, trusted once names and sizes fit. Any other
is measured: one pass over all bytes, at the speed of the disk (8 GB a second from memory), kept in the
cache folder under the files' paths, sizes and times of change, so that the next opening costs milliseconds.
"""

import json
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from trivium.errors import Problem, SourceError
from trivium.files import cache_folder, cache_key, draft, hash_json, is_within, keep_in_cache, read_json
from trivium.tokenfiles.ends import Ends
from trivium.tokenfiles.open import TokenFile

VERSION = 1
MANIFEST_NAME = "manifest.json"
SLICE_BYTES = 1 << 20  # each is read twice, to hash and to compare, and should fit into the processor's cache
LARGEST_ID = 2**31 - 1  # batches are int32
THREADS = 4

Progress = Callable[[int], None]  # called with the number of tokens read since the last call, from any thread


@dataclass(frozen=True, slots=True)
class TokenFileFacts:
    """What one token file holds."""

    name: str
    bytes: int  # with the files beside it: index, loss, tasks
    documents: int
    tokens: int
    dtype: str
    largest_id: int
    hash: str  # of tokens, document ends, loss and tasks


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a source is made of, file by file, in the order in which they are read."""

    files: tuple[TokenFileFacts, ...]
    tokenizer: str | None

    @property
    def documents(self) -> int:
        return sum(file.documents for file in self.files)

    @property
    def tokens(self) -> int:
        return sum(file.tokens for file in self.files)

    @property
    def largest_id(self) -> int:
        return max(file.largest_id for file in self.files)

    @property
    def fingerprint(self) -> str:
        """Changes with any document, their order, and a file's name in the source; not when the source is moved."""
        content = [(file.name, file.hash) for file in self.files]
        return hash_json(content)


def manifest_of(
    files: Sequence[TokenFile], folder: Path | None = None, cache: Path | None = None, progress: Progress | None = None
) -> Manifest:
    """What `files` are made of: read from `manifest.json` in `folder` if there is one, else measured once.

    `folder` is given when the files are all that a folder holds, so that a missing or additional file is found.
    """
    if folder and (folder / MANIFEST_NAME).is_file():
        manifest = read_manifest(folder / MANIFEST_NAME)
        _check_fits(manifest, files, folder / MANIFEST_NAME)
        return manifest
    parts = tuple(part for file in files for part in file.parts)
    readings = [
        (file.name, file.dtype.name, file.settings.eos, file.settings.bos, file.settings.padding) for file in files
    ]
    kept = (cache or cache_folder()) / "manifests" / f"{cache_key('manifest', parts, readings)}.json"
    if kept.is_file():
        return read_manifest(kept)
    manifest = measure(files, progress)
    keep_in_cache(kept, _as_json(manifest))
    return manifest


def measure(files: Sequence[TokenFile], progress: Progress | None = None) -> Manifest:
    """Read all of `files` once, some at a time, and check what opening them did not."""
    with ThreadPoolExecutor(min(THREADS, os.cpu_count() or 1)) as pool:
        facts = tuple(pool.map(lambda file: measure_file(file, progress), files))
    return Manifest(facts, next((file.tokenizer for file in files if file.tokenizer), None))


def measure_file(file: TokenFile, progress: Progress | None = None) -> TokenFileFacts:
    """Read one file from start to end."""
    # Sizes come first, so that moving a byte from one array to the next changes the hash.
    shape = [file.dtype.name, len(file.tokens), len(file.ends), file.loss is not None]
    hasher = xxhash.xxh3_128(json.dumps(shape).encode())
    largest, smallest = 0, 0
    step = SLICE_BYTES // file.dtype.itemsize
    for start in range(0, len(file.tokens), step):
        tokens = file.tokens[start : start + step]
        # NumPy first: it waits for the disk without blocking the other threads.
        largest = max(largest, int(tokens.max()))
        hasher.update(tokens.data)
        if file.dtype.kind == "i":
            smallest = min(smallest, int(tokens.min()))
        if progress:
            progress(len(tokens))
    _hash_ends(file, hasher)
    for labels in (file.loss, file.tasks):
        if labels is not None:
            for start in range(0, len(labels), SLICE_BYTES):
                hasher.update(labels[start : start + SLICE_BYTES].data)
    _check_ids(file, smallest, largest)
    return _file_facts(file, largest, hasher.hexdigest())


def _file_facts(file: TokenFile, largest_id: int, content_hash: str) -> TokenFileFacts:
    """The facts of an open file; its largest id and its hash come from reading it."""
    return TokenFileFacts(
        name=file.name,
        bytes=sum(part.size for part in file.parts),
        documents=len(file.ends),
        tokens=len(file.tokens),
        dtype=file.dtype.name,
        largest_id=largest_id,
        hash=content_hash,
    )


def _hash_ends(file: TokenFile, hasher: xxhash.xxh3_128) -> None:
    """Add the document ends to the hash; refused where one is before its predecessor."""
    before = 0
    step = SLICE_BYTES // 8
    for start in range(0, len(file.ends), step):
        ends: Ends = np.ascontiguousarray(file.ends[start : start + step], "<i8")
        steps = np.diff(ends, prepend=before)
        if steps.min() < 0:
            number = int(np.argmax(steps < 0))
            earlier = ends[number] - steps[number]
            raise SourceError(
                f"{file.parts[min(1, len(file.parts) - 1)].path}: document {start + number:,} ends at token "
                f"{ends[number]:,}, before the one ahead of it, at {earlier:,}. "
                f"The index is damaged: copy or write it again."
            )
        hasher.update(ends.data)
        before = int(ends[-1])


def _check_ids(file: TokenFile, smallest: int, largest: int) -> None:
    if smallest < 0:
        raise SourceError(
            f"{file.path}: holds the token id {smallest:,}, and ids start at 0. It is damaged, or "
            f"was written as another dtype than {file.dtype.name}: write it again."
        )
    if largest > LARGEST_ID:
        raise SourceError(
            f"{file.path}: holds the token id {largest:,}, over the limit of {LARGEST_ID:,}. It is damaged, "
            f"or was written as another dtype than {file.dtype.name}: write it again."
        )


def check_vocab(manifest: Manifest, files: Sequence[TokenFile], vocab: int) -> None:
    """Refuse a source that holds ids which a model of `vocab` token ids cannot look up."""
    for file, opened in zip(manifest.files, files, strict=True):
        if file.largest_id >= vocab:
            raise SourceError(
                f"{opened.path}: holds the token id {file.largest_id:,}, the model knows 0 to {vocab - 1:,}. "
                f"Write model.vocab = {file.largest_id + 1} or more, or tokenise with the model's tokenizer."
            )


def verify(manifest: Manifest, files: Sequence[TokenFile], progress: Progress | None = None) -> tuple[Problem, ...]:
    """Read all content again and name each file that differs from the manifest; empty if none does."""
    problems = _listing_problems(manifest, files)
    listed = {file.name: file for file in manifest.files}
    for file in files:
        if file.name not in listed:
            continue
        try:
            problems += _differences(listed[file.name], measure_file(file, progress))
        except SourceError as error:
            problems.append(Problem("", str(error)))
    return tuple(problems)


def _check_fits(manifest: Manifest, files: Sequence[TokenFile], where: Path) -> None:
    """What can be compared without reading content: names, order, sizes, counts."""
    problems = _listing_problems(manifest, files)
    if not problems:
        for listed, file in zip(manifest.files, files, strict=True):
            problems += _differences(listed, _file_facts(file, listed.largest_id, listed.hash))
    if problems:
        raise SourceError(
            f"{where}: does not describe these files: {problems[0]} "
            f"Restore the files, or delete {where.name} to have the files measured."
        )


def _listing_problems(manifest: Manifest, files: Sequence[TokenFile]) -> list[Problem]:
    """Files that only the manifest or only the folder has, or that are in another order."""
    listed = dict.fromkeys(file.name for file in manifest.files)
    present = dict.fromkeys(file.name for file in files)
    missing = [Problem(name, "is listed and does not exist.") for name in listed if name not in present]
    added = [Problem(name, "exists and is not listed.") for name in present if name not in listed]
    if not missing + added and list(listed) != list(present):
        moved = next(name for name, other in zip(listed, present, strict=True) if name != other)
        return [Problem(moved, "is read in another order than listed.")]
    return missing + added


def _differences(was: TokenFileFacts, now: TokenFileFacts) -> list[Problem]:
    """One problem that names all that changed; the hash only where nothing else did."""
    old, new = asdict(was), asdict(now)
    changed = [key for key in old if old[key] != new[key]]
    shown = [key for key in changed if key != "hash"] or changed
    changes = [
        f"was {old[key]:,} {key}, is {new[key]:,}"
        if key in ("bytes", "documents", "tokens")
        else f"{key.replace('_', ' ')} was {old[key]}, is {new[key]}"
        for key in shown
    ]
    return [Problem(was.name, f"{'; '.join(changes)}.")] if changes else []


def write_manifest(manifest: Manifest, path: Path) -> None:
    """Write `manifest` beside its files, atomically."""
    with draft(path) as file:
        file.write(_as_json(manifest))


def _as_json(manifest: Manifest) -> bytes:
    content = {
        "version": VERSION,
        "fingerprint": manifest.fingerprint,
        "tokenizer": manifest.tokenizer,
        "documents": manifest.documents,
        "tokens": manifest.tokens,
        "files": [asdict(file) for file in manifest.files],
    }
    return json.dumps(content, indent=1).encode() + b"\n"


MANIFEST_KINDS: dict[str, tuple[type, ...]] = {
    "version": (int,),
    "fingerprint": (str,),
    "tokenizer": (str, type(None)),
    "documents": (int,),
    "tokens": (int,),
    "files": (list,),
}
FILE_KINDS: dict[str, tuple[type, ...]] = {
    field.name: (str,) if field.type is str else (int,) for field in fields(TokenFileFacts)
}


def read_manifest(path: Path) -> Manifest:
    """Read a manifest and check its keys, kinds, names and sums."""
    try:
        content = read_json(path)
    except (OSError, ValueError) as error:
        raise _unreadable(path, f"cannot be read ({error})") from None
    version = content.get("version") if isinstance(content, dict) else None
    if version != VERSION:
        raise _unreadable(path, f"has version {version!r}, and {VERSION} is known")
    _check_keys(path, "", content, MANIFEST_KINDS)
    for number, entry in enumerate(content["files"]):
        _check_keys(path, f"files[{number}].", entry, FILE_KINDS)
        _check_name(path, f"files[{number}].name", entry["name"])
    manifest = Manifest(tuple(TokenFileFacts(**entry) for entry in content["files"]), content["tokenizer"])
    if not manifest.files:
        raise _unreadable(path, "lists no files")
    if len({file.name for file in manifest.files}) != len(manifest.files):
        raise _unreadable(path, "lists a name twice")
    for key in ("documents", "tokens", "fingerprint"):
        if content[key] != getattr(manifest, key):
            raise _unreadable(path, f"{key} is {content[key]}, and its files give {getattr(manifest, key)}")
    return manifest


def _check_keys(path: Path, where: str, entry: Any, kinds: dict[str, tuple[type, ...]]) -> None:
    """`entry` has the keys of `kinds`, all and no other, each with a value of its kind and none below 0."""
    if not isinstance(entry, dict):
        raise _unreadable(path, f"{where.rstrip('.')} is not a table")
    for key in entry.keys() ^ kinds.keys():
        raise _unreadable(path, f"{where}{key} is {'missing' if key in kinds else 'not a known key'}")
    for key, kind in kinds.items():
        value = entry[key]
        if type(value) not in kind or (type(value) is int and value < 0):
            raise _unreadable(path, f"{where}{key} is {value!r}")


def _check_name(path: Path, where: str, name: str) -> None:
    if not is_within(name):
        raise _unreadable(path, f"{where} is {name!r}, which is not a plain path within the folder")


def _unreadable(path: Path, what: str) -> SourceError:
    return SourceError(f"{path}: {what}. Delete it to have the files measured, or prepare the source again.")

"""open: token files -> mapped arrays of tokens, document ends and loss; nothing is read into memory.

Formats are datatrove's `.ds`, `.npy`, flat `.bin`, Megatron's `.bin` with `.idx`, and two with masks. Opening
checks what is cheap, 0.3 ms a file: that sizes, headers and last document ends fit. `manifest` reads all content
once. A file whose index or header declares 0 tokens (of a worker that had nothing to tokenise) is skipped; a
flat file of 0 bytes declares nothing, and is refused.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from errno import ENOMEM
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trivium.errors import SourceError
from trivium.files import FileStamp, cache_folder, cache_key, map_file, stamp_of
from trivium.paths import Found
from trivium.tokenfiles.dtypes import TokenMetadata, agreed_dtype
from trivium.tokenfiles.ends import Ends, Tokens, cached_ends, ends_by_mark, map_ends
from trivium.tokenfiles.find import find_files
from trivium.tokenfiles.formats import TokenFileDescription, describe
from trivium.tokenfiles.masked import Padding, cached_documents, cached_loss


@dataclass(frozen=True, slots=True)
class TokenFileSettings:
    """What the config adds to what token files declare themselves."""

    dtype: str | None = None
    eos: int | None = None  # a document of a flat file ends after this id
    bos: int | None = None  # a document of a flat file starts at this id
    padding: Padding | None = None  # the side of padded rows; None: found from their mask

    def __post_init__(self) -> None:
        if self.eos is not None and self.bos is not None:
            raise SourceError(
                f"eos = {self.eos} and bos = {self.bos}: documents of flat files are found by one id. "
                f"Keep eos if each document ends with it, else bos."
            )


@dataclass(frozen=True, slots=True)
class TokenFile:
    """One token file, mapped: document n is `tokens[ends[n - 1]:ends[n]]`, and may be empty."""

    path: Path
    name: str  # within the source, with forward slashes
    format: str
    tokens: Tokens
    ends: Ends  # non-decreasing; the last one is the number of tokens
    loss: NDArray[np.uint8] | None  # for each token; 0 does not count in the loss
    tokenizer: str | None  # as metadata names it
    parts: tuple[FileStamp, ...]  # all files this was read from, the token file first
    mapped: tuple[FileStamp, ...]  # all files whose bytes are read from memory, those in the cache folder too
    settings: TokenFileSettings
    tasks: NDArray[np.uint8] | None = None  # for each document, where a source mixes several

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.tokens.dtype

    @property
    def num_tokens(self) -> int:
        return len(self.tokens)

    @property
    def num_documents(self) -> int:
        return len(self.ends)

    def open(self) -> "TokenFile":
        """This file, which is open."""
        return self


@dataclass(slots=True)
class UnopenedFile:
    """A token file that another rank has opened and measured; this one opens it when it first reads from it."""

    path: Path
    name: str
    dtype: np.dtype[Any]
    num_tokens: int
    num_documents: int
    settings: TokenFileSettings
    _opened: TokenFile | None = None

    def open(self) -> TokenFile:
        """The file, mapped; refused where it is not what the other rank has measured."""
        if self._opened is None:
            found = _open(Found(self.path, self.name), self.settings, cache_folder(), {})
            was, here = (f"{each.num_documents:,} documents, {each.num_tokens:,} tokens" for each in (self, found))
            if (was, self.dtype) != (here, found.dtype):
                what = f"has {here} of {found.dtype} here, and had {was} of {self.dtype} on rank 0"
                raise SourceError(f"{self.path}: {what}. Copy it again: all ranks must read the same files.")
            self._opened = found
        return self._opened


def open_source(
    paths: str | Path | Sequence[str | Path], settings: TokenFileSettings | None = None, cache: Path | None = None
) -> tuple[TokenFile, ...]:
    return open_files(find_files(paths), settings, cache)


def open_files(
    found: Sequence[Found], settings: TokenFileSettings | None = None, cache: Path | None = None
) -> tuple[TokenFile, ...]:
    """Open token files of one format, dtype and tokenizer; those without tokens are skipped."""
    settings, cache = settings or TokenFileSettings(), cache or cache_folder()
    sidecars: dict[Path, TokenMetadata | None] = {}
    opened = (_open(each, settings, cache, sidecars) for each in found)
    files = tuple(file for file in opened if len(file.tokens))
    if not files:
        raise SourceError(
            f"{found[0].path.parent}: none of its {len(found):,} token files holds a token. "
            f"Prepare the source again, or remove it from the config."
        )
    _refuse_mixed(files)
    _refuse_absent_mark(files, settings)
    return files


def _open(
    found: Found, settings: TokenFileSettings, cache: Path, sidecars: dict[Path, TokenMetadata | None]
) -> TokenFile:
    try:
        description = describe(found.path, sidecars)
        parts = tuple(stamp_of(path) for path in (found.path, *description.beside))
        tokens = _map_tokens(found.path, settings, description)
        ends_at: Path | None
        loss_at: Path | None
        if description.padded:
            padded = replace(description.padded, padding=settings.padding)
            key = cache_key("unpadded", parts, str(tokens.dtype), settings.padding or "either side")
            tokens_at, ends_at, loss_at = cached_documents(cache, key, padded, tokens)
            mapped = tuple(map(stamp_of, (tokens_at, ends_at, loss_at)))
            tokens = np.frombuffer(map_file(tokens_at), tokens.dtype)
        else:
            ends_at = _ends_path(tokens, parts, settings, description, cache)
            loss_at = _loss_path(tokens, parts, description, cache)
            mapped = (parts[0], *(stamp_of(path) for path in (ends_at, loss_at) if path is not None))
        ends = description.ends
        if ends is None:
            ends = np.array([len(tokens)] * (len(tokens) > 0), np.int64) if ends_at is None else map_ends(ends_at)
        loss = None if loss_at is None else _map_labels(loss_at, found.path, len(tokens), "tokens")
        tasks = _map_labels(description.tasks, found.path, len(ends), "documents") if description.tasks else None
        mapped += () if description.tasks is None else (stamp_of(description.tasks),)
    except OSError as error:
        # Linux maps 65,530 files for a process by default; a `.ds` takes two or three of these.
        many = "The system's limit on mapped files is reached: raise vm.max_map_count, or merge files."
        advice = many if error.errno == ENOMEM else "Check that it exists and that you may read it."
        raise SourceError(f"{error.filename or found.path}: cannot be opened: {error.strerror}. {advice}") from error
    tokenizer = description.metadata.tokenizer if description.metadata else None
    facts = found.path, found.name, description.format, tokens, ends, loss, tokenizer, parts, mapped, settings, tasks
    return TokenFile(*facts)


def _map_tokens(path: Path, settings: TokenFileSettings, description: TokenFileDescription) -> Tokens:
    dtype = agreed_dtype(path, [TokenMetadata("the config", settings.dtype), description.metadata or TokenMetadata("")])
    mapped = map_file(path)[description.start :]
    if len(mapped) % dtype.itemsize:
        raise SourceError(
            f"{path}: has {len(mapped):,} bytes of tokens, which is not a multiple of {dtype.name}'s {dtype.itemsize}. "
            f"It is cut short, or its dtype is another: copy it again, or fix dtype."
        )
    tokens: Tokens = np.frombuffer(mapped, dtype)
    count = description.count
    if count is None and len(tokens) == 0:
        raise SourceError(f"{path}: has 0 bytes, like a copy that was broken off. Copy it again, or delete it.")
    if count is not None and count.tokens != len(tokens):
        raise SourceError(
            f"{path}: holds {len(tokens):,} {dtype.name} tokens, {count.where.name} declares {count.tokens:,}. "
            f"One of the two is cut short or of another version: copy both again."
        )
    return tokens


def _ends_path(
    tokens: Tokens,
    parts: tuple[FileStamp, ...],
    settings: TokenFileSettings,
    description: TokenFileDescription,
    cache: Path,
) -> Path | None:
    """The file of document ends: the index, else computed by `eos` or `bos`; None where the file is one document."""
    if description.index:
        return description.index
    if len(tokens) == 0:
        return None
    if description.packed:
        packed = description.packed
        return cached_ends(cache, cache_key("packed", parts), lambda: packed.ends(len(tokens)), len(tokens))
    if description.megatron:
        return cached_ends(cache, cache_key("megatron", parts), description.megatron.ends, len(tokens))
    if settings.eos is not None or settings.bos is not None:
        key = cache_key("marks", parts, str(tokens.dtype), description.start, settings.eos, settings.bos)
        return cached_ends(cache, key, lambda: ends_by_mark(tokens, settings.eos, settings.bos), len(tokens))
    if description.format == "ds":
        raise SourceError(
            f"{parts[0].path}: has no .ds.index beside it, so that the ends of its documents are not known. "
            f"Copy the index too, or write eos = <the id that ends a document>."
        )
    return None


def _loss_path(
    tokens: Tokens, parts: tuple[FileStamp, ...], description: TokenFileDescription, cache: Path
) -> Path | None:
    """The file that tells which tokens count in the loss; None where all do."""
    if description.loss:
        return description.loss
    packed = description.packed
    if packed and packed.mask:
        return cached_loss(cache, cache_key("loss", parts), lambda: packed.loss(tokens), len(tokens))
    return None


def _map_labels(path: Path, of: Path, count: int, what: str) -> NDArray[np.uint8]:
    """A byte for each token or document of a file."""
    labels = np.frombuffer(map_file(path), np.uint8)
    if len(labels) != count:
        without = "count all tokens in the loss" if what == "tokens" else "read them without the names of their tasks"
        raise SourceError(
            f"{path}: has {len(labels):,} bytes, and {of.name} has {count:,} {what}, one byte each. "
            f"Copy both again, or delete it to {without}."
        )
    return labels


def _refuse_mixed(files: Sequence[TokenFile]) -> None:
    """Refuse files of several formats, dtypes or tokenizers: one that differs is probably a stray file."""
    for what in ("format", "dtype", "tokenizer"):
        # A file that names no tokenizer may be beside one that does.
        known = [file for file in files if getattr(file, what) is not None]
        for file in known:
            here, there = getattr(file, what), getattr(known[0], what)
            if here != there:
                raise SourceError(
                    f"{file.path}: has the {what} {here}, and {known[0].path} has {there}: a source has one. "
                    f'Make two sources of them, or name the right ones: path = "folder/*.ds".'
                )


def _refuse_absent_mark(files: Sequence[TokenFile], settings: TokenFileSettings) -> None:
    """Refuse an id that no file holds: it would make each file one document."""
    indexed = len(files[0].parts) > 1
    if indexed or (settings.eos is None and settings.bos is None):
        return
    for file in files:
        if len(file.ends) > 1 or file.tokens[-1] == settings.eos or file.tokens[0] == settings.bos:
            return
    mark = f"eos = {settings.eos}" if settings.eos is not None else f"bos = {settings.bos}"
    raise SourceError(
        f"{files[0].path}: {mark} marks documents, and occurs in none of the {len(files):,} files. "
        f"Write the id of the tokenizer that made them, or remove it if a file is one document."
    )

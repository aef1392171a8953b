"""formats: a token file's header and the files beside it -> its dtype, its documents and its number of tokens.

| format     | files                                   | dtype from              | documents from        |
|------------|-----------------------------------------|-------------------------|-----------------------|
| `ds`       | .ds and .index .loss .task .metadata    | .ds.metadata            | .ds.index             |
| `npy`      | .npy                                    | its header              | -                     |
| `bin`      | .bin, metadata.json or metadata.yaml    | the metadata, if any    | -                     |
| `megatron` | .bin, .idx                              | .idx                    | .idx                  |
| `packed`   | _token.npy, _index.npy, _mask.npy       | its header              | _index.npy            |
| `padded`   | .bin, .bin.mask, shape.json             | shape.json and its size | a row each            |

Reads a few hundred bytes of each file, no tokens; nothing is ever unpickled.
"""

import os
import re
import struct
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from trivium.errors import SourceError
from trivium.files import map_file, read_bounded
from trivium.tokenfiles.dtypes import TokenMetadata, read_sidecar
from trivium.tokenfiles.ends import Ends, MegatronIndex, map_ends
from trivium.tokenfiles.masked import PackedArrays, PaddedRows, find_packed, find_padded, read_npy_header

NPY_MAGIC = b"\x93NUMPY"
LARGEST_METADATA = 1 << 20  # bytes
COUNT = re.compile(r"[0-9]{1,19}")
DS_DTYPES = {"2": "uint16", "4": "uint32"}
MEGATRON_MAGIC = b"MMIDIDX\x00\x00"
# Magic, version, dtype code, number of sequences, length of the document list.
MEGATRON_HEADER = struct.Struct("<9sQBQQ")
MEGATRON_DTYPES = {1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 8: "uint16"}


@dataclass(frozen=True, slots=True)
class TokenCount:
    """A number of tokens, and the file that declares it."""

    where: Path
    tokens: int


@dataclass(frozen=True, slots=True)
class TokenFileDescription:
    """What a token file and the files beside it declare; None where they do not."""

    format: str
    metadata: TokenMetadata | None = None
    count: TokenCount | None = None
    start: int = 0  # the byte at which the tokens begin
    index: Path | None = None  # document ends, 8 bytes each
    ends: Ends | None = None  # what is in the index, mapped
    megatron: MegatronIndex | None = None
    loss: Path | None = None  # one byte a token
    tasks: Path | None = None  # one byte a document
    packed: PackedArrays | None = None
    padded: PaddedRows | None = None

    @property
    def beside(self) -> tuple[Path, ...]:
        """The other files that are part of the source's content."""
        masked = self.packed or self.padded
        if masked is not None:
            return masked.beside
        megatron = self.megatron.path if self.megatron else None
        return tuple(path for path in (self.index, megatron, self.loss, self.tasks) if path)


def describe(path: Path, sidecars: dict[Path, TokenMetadata | None]) -> TokenFileDescription:
    """What the token file at `path` declares; `sidecars` caches each folder's metadata."""
    if path.suffix == ".ds":
        return _describe_ds(path)
    if path.suffix == ".bin" and path.with_suffix(".idx").is_file():
        return _describe_megatron(path.with_suffix(".idx"))
    if path.suffix == ".bin" and (padded := find_padded(path)):
        return _describe_padded(path, padded)
    if path.suffix == ".npy" and (header := _describe_npy(path)):
        packed = find_packed(path)
        return header if packed is None else replace(header, format="packed", packed=packed)
    if path.parent not in sidecars:
        sidecars[path.parent] = read_sidecar(path.parent)
    return TokenFileDescription(path.suffix[1:], sidecars[path.parent])


def _describe_ds(path: Path) -> TokenFileDescription:
    """datatrove's format, which nanotron's nanosets use."""
    index, loss, tasks, metadata = (Path(f"{path}.{ending}") for ending in ("index", "loss", "task", "metadata"))
    # A link that leads nowhere, and a pipe, are not the same as no file.
    declared, count = _read_ds_metadata(metadata) if os.path.lexists(metadata) else (None, None)
    ends = None
    if os.path.lexists(index):
        if index.stat().st_size % 8:
            raise SourceError(
                f"{index}: has {index.stat().st_size:,} bytes, not a multiple of the 8 that a document end takes. "
                f"It is cut short: copy it again."
            )
        ends = map_ends(index)
        count = TokenCount(index, int(ends[-1]) if len(ends) else 0)
    there = [path if os.path.lexists(path) else None for path in (index, loss, tasks)]
    return TokenFileDescription("ds", declared, count, index=there[0], ends=ends, loss=there[1], tasks=there[2])


def _read_ds_metadata(path: Path) -> tuple[TokenMetadata, TokenCount | None]:
    """Three lines: `gpt2|2` (tokenizer, bytes a token), `1204` tokens, `1.20 kT`; old ones have no `|2`."""
    try:
        text = read_bounded(path, LARGEST_METADATA).decode(errors="replace")
    except ValueError as reason:
        raise SourceError(f"{path}: cannot be read: {reason}. Copy it again, or delete it.") from None
    first, *more = text.splitlines() or [""]
    tokenizer, bar, size = first.rpartition("|")
    if not bar:
        tokenizer, size = first, ""
    if bar and size not in DS_DTYPES:
        raise SourceError(f'{path}: has "{size}" bytes a token. Known are 2 and 4: write "{tokenizer}|2" or "|4".')
    # datatrove writes "Unknown Tokenizer|2|2" where it was given no name.
    known = tokenizer if tokenizer and not tokenizer.startswith("Unknown Tokenizer") else None
    count = TokenCount(path, int(more[0])) if more and COUNT.fullmatch(more[0]) else None
    return TokenMetadata(str(path), DS_DTYPES.get(size), known), count


def _describe_npy(path: Path) -> TokenFileDescription | None:
    """What the header declares; None for a file without one: OLMo and dolma write raw tokens as `.npy`."""
    with open(path, "rb") as file:
        if file.read(len(NPY_MAGIC)) != NPY_MAGIC:
            return None
        file.seek(0)
        try:
            shape, _, dtype = read_npy_header(file)
        except Exception as error:  # garbage fails in many ways, from tokenize to struct
            what = f"its header cannot be read ({error})"
            raise SourceError(f"{path}: {what}. It is damaged: copy or save it again.") from None
        start = file.tell()
    if len(shape) != 1:
        what = f"has the shape {shape}, and tokens are one-dimensional"
        raise SourceError(f"{path}: {what}. Save array.reshape(-1) instead.")
    if dtype.kind not in "iu" or dtype.newbyteorder("<") != dtype:
        raise SourceError(
            f"{path}: holds {dtype.str}, and tokens are little-endian integers. "
            f'Save array.astype("uint16") or "uint32" instead.'
        )
    return TokenFileDescription("npy", TokenMetadata(str(path), dtype.name), TokenCount(path, shape[0]), start)


def _describe_padded(path: Path, padded: PaddedRows) -> TokenFileDescription:
    """Rows whose number and length `shape.json` gives, so that the file's size gives the bytes of a token."""
    size, slots = path.stat().st_size, padded.rows * padded.width
    dtype = {2 * slots: "uint16", 4 * slots: "uint32", 8 * slots: "int64"}.get(size) if slots > 0 else None
    if dtype is None:
        raise SourceError(
            f"{path}: has {size:,} bytes, and shape.json gives {padded.rows:,} rows of {padded.width:,} tokens. "
            f"That is neither 2, 4 nor 8 bytes a token: write both again."
        )
    return TokenFileDescription("padded", TokenMetadata(str(path.parent / "shape.json"), dtype), padded=padded)


def _describe_megatron(path: Path) -> TokenFileDescription:
    """An `.idx`: header, then sequence lengths (int32), sequence places and document list (int64)."""
    mapped = map_file(path)
    if bytes(mapped[: len(MEGATRON_MAGIC)]) != MEGATRON_MAGIC or len(mapped) < MEGATRON_HEADER.size:
        raise SourceError(
            f"{path}: is not an index of Megatron: it starts with {bytes(mapped[:9])!r}. "
            f"Write it again, or delete it to read the .bin as a flat file."
        )
    _, version, code, num_sequences, num_entries = MEGATRON_HEADER.unpack_from(mapped)
    if version != 1:
        raise SourceError(f"{path}: has version {version}, and 1 is known. Write it with Megatron-LM as of 2019.")
    if code not in MEGATRON_DTYPES:
        known = ", ".join(f"{code} ({name})" for code, name in MEGATRON_DTYPES.items())
        raise SourceError(f"{path}: has dtype code {code}, and tokens are integers: {known}. Write it again.")
    size = MEGATRON_HEADER.size + 12 * num_sequences + 8 * num_entries
    if len(mapped) != size:
        raise SourceError(
            f"{path}: has {len(mapped):,} bytes, and {num_sequences:,} sequences with {num_entries:,} "
            f"document marks need {size:,}. It is cut short, or holds more than text: copy or write it again."
        )
    index = _megatron_arrays(path, mapped, np.dtype(MEGATRON_DTYPES[code]).itemsize, num_sequences, num_entries)
    metadata, count = TokenMetadata(str(path), MEGATRON_DTYPES[code]), TokenCount(path, index.num_tokens)
    return TokenFileDescription("megatron", metadata, count, megatron=index)


def _megatron_arrays(
    path: Path, mapped: memoryview, token_size: int, num_sequences: int, num_entries: int
) -> MegatronIndex:
    """The three arrays behind the header; the header has 34 bytes, so that no array is aligned."""
    lengths_at = MEGATRON_HEADER.size
    places_at = lengths_at + 4 * num_sequences
    documents_at = places_at + 8 * num_sequences
    return MegatronIndex(
        path,
        token_size,
        lengths=np.frombuffer(mapped, "<i4", num_sequences, lengths_at),
        places=np.frombuffer(mapped, "<i8", num_sequences, places_at),
        documents=np.frombuffer(mapped, "<i8", num_entries, documents_at),
    )

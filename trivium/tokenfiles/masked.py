"""Token files with a mask beside them: three arrays (torchtitan's `packed_memmap`), or padded rows.

| form   | files                                     | documents                      | mask                     |
|--------|-------------------------------------------|--------------------------------|--------------------------|
| packed | a_token.npy, a_index.npy, (a_mask.npy)    | ends, starts, or both, in one  | 1 counts in the loss; or |
|        |                                           | line, or (start, length) pairs | labels, -100 is ignored  |
| padded | a.bin, a.bin.mask (or a.mask), shape.json | a row each, without padding    | 1 counts in the loss     |

Rows are padded on the side that the config gives. Else they are padded on the right where one of them ends masked: what
is masked after its last token that counts is padding, before the first a prompt; and on the left where none does, or
where theseus's config.json beside them gives their `pad_token`. Padding on the left is that token, or 0.

What has to be computed is kept in the cache folder: document ends, loss bytes, and of padded rows the tokens without
padding. Arrays are read by their headers alone; nothing is ever unpickled.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from trivium.errors import SourceError
from trivium.files import cached_draft, map_file, read_json
from trivium.tokenfiles.ends import SLICE, Ends, Tokens, ends_fit

TOKEN, INDEX, MASK = "_token.npy", "_index.npy", "_mask.npy"
SHAPE = "shape.json"
WRITTEN_BY = "config.json"  # how theseus wrote the rows
IGNORED_LABEL = -100  # in a mask file of labels
Loss = NDArray[np.uint8]
Padding = Literal["left", "right"]


@dataclass(frozen=True, slots=True)
class PackedArrays:
    """The arrays beside an array of tokens."""

    index: Path
    mask: Path | None

    @property
    def beside(self) -> tuple[Path, ...]:
        return (self.index,) if self.mask is None else (self.index, self.mask)

    def ends(self, num_tokens: int) -> Iterator[Ends]:
        """Where documents end; the index has one of four forms, recognised by its shape and its ends."""
        index = map_npy(self.index)
        if index.dtype.kind not in "iu" or index.ndim not in (1, 2) or (index.ndim == 2 and index.shape[1] != 2):
            raise self._bad_index(f"has the shape {index.shape} of {index.dtype}")
        if not len(index):
            raise self._bad_index("is empty")
        index = index.astype(np.int64)
        if index.ndim == 2:
            starts, ends = index[:, 0], index[:, 0] + index[:, 1]
        elif index[-1] == num_tokens:
            ends = index[1:] if index[0] == 0 and len(index) > 1 else index
            starts = np.concatenate(([0], ends[:-1]))
        else:
            starts, ends = index, np.concatenate((index[1:], [num_tokens]))
        if starts[0] != 0 or ends[-1] != num_tokens or np.any(starts[1:] != ends[:-1]) or np.any(starts > ends):
            raise self._bad_index(f"does not divide the {num_tokens:,} tokens: {starts[0]:,} to {ends[-1]:,}")
        yield ends

    def _bad_index(self, what: str) -> SourceError:
        return SourceError(
            f"{self.index}: {what}. An index has each document's end, or its start, in one line, or (start, length) "
            f"pairs, without gaps. Write it again."
        )

    def loss(self, tokens: Tokens) -> Iterator[Loss]:
        """Which tokens count in the loss, slice by slice."""
        assert self.mask is not None, "callers check that there is a mask"
        mask = map_npy(self.mask)
        if mask.shape != tokens.shape or mask.dtype.kind not in "biu":
            raise SourceError(
                f"{self.mask}: has {mask.shape} values of {mask.dtype}, and there are {len(tokens):,} tokens. "
                f"A mask has one value for each: write both again."
            )
        labels = mask.dtype.kind == "i" and mask.dtype.itemsize > 1
        for start in range(0, len(mask), SLICE):
            here, there = mask[start : start + SLICE], tokens[start : start + SLICE]
            loss_mask = here != (IGNORED_LABEL if labels else 0)
            fits = (here == there) | ~loss_mask if labels else here.astype(np.int64) <= 1
            if labels and not fits.all():
                # Signed integers that are all 0 or 1 are a mask, not labels.
                loss_mask, fits = here == 1, (here == 0) | (here == 1)
            if not fits.all():
                place = start + int(np.argmin(fits))
                raise SourceError(
                    f"{self.mask}: value {place:,} is {mask[place]}, and the token there is {tokens[place]}. "
                    f"A mask has 1 for what counts in the loss, or labels: the token itself, or -100. Write it again."
                )
            yield loss_mask.astype(np.uint8)


@dataclass(frozen=True, slots=True)
class PaddedRows:
    """Rows of one length, whose mask marks what is not padding."""

    mask: Path
    rows: int
    width: int
    pad_token: int | None = None  # on the left; None: it is not known
    config: Path | None = None  # where the pad token is given
    padding: Padding | None = None  # the side that the user gives

    @property
    def beside(self) -> tuple[Path, ...]:
        return (self.mask,) if self.config is None else (self.mask, self.config)

    def documents(self, tokens: Tokens) -> Iterator[tuple[Tokens, Ends, Loss]]:
        """Documents without padding, some rows at a time: tokens, lengths and the loss mask."""
        mask = np.frombuffer(map_file(self.mask), np.uint8)
        if len(mask) != len(tokens) or len(tokens) != self.rows * self.width:
            raise SourceError(
                f"{self.mask}: has {len(mask):,} bytes, and {SHAPE} gives {self.rows:,} rows of {self.width:,}. "
                f"A mask has a byte for each token: write both again."
            )
        step = max(1, SLICE // max(1, self.width))
        parts = [
            slice(first * self.width, min(first + step, self.rows) * self.width) for first in range(0, self.rows, step)
        ]
        masks = [mask[part].reshape(-1, self.width) for part in parts]  # nothing is read yet
        pad_token = self._left_token(masks)
        for part, bytes_of_rows in zip(parts, masks, strict=True):
            rows, loss_mask = tokens[part].reshape(-1, self.width), bytes_of_rows != 0
            kept = _text(rows, loss_mask, pad_token)
            lengths = kept.sum(axis=1)
            yield rows[kept], lengths[lengths > 0].astype(np.int64), loss_mask[kept].astype(np.uint8)

    def _left_token(self, masks: Sequence[Loss]) -> int | None:
        """The token that pads rows on the left; None where they are padded on the right."""
        if self.padding is not None:
            return (self.pad_token or 0) if self.padding == "left" else None
        if self.pad_token is not None:
            return self.pad_token
        ends_masked = any(np.any(each.any(axis=1) & (each[:, -1] == 0)) for each in masks)
        return None if ends_masked else 0


def _text(rows: Tokens, loss_mask: NDArray[np.bool_], pad_token: int | None) -> NDArray[np.bool_]:
    """What is not padding, on the left with a token, else on the right; nothing of a row without loss."""
    places, has_loss = np.arange(rows.shape[1]), np.any(loss_mask, axis=1, keepdims=True)
    if pad_token is not None:
        text = places >= np.argmax(loss_mask | (rows != pad_token), axis=1, keepdims=True)
    else:
        text = places < rows.shape[1] - np.argmax(loss_mask[:, ::-1], axis=1, keepdims=True)
    kept: NDArray[np.bool_] = np.logical_and(text, has_loss)
    return kept


def find_packed(path: Path) -> PackedArrays | None:
    """The arrays beside a `_token.npy`; None where there is no index."""
    if not path.name.endswith(TOKEN):
        return None
    index, mask = (path.with_name(path.name.removesuffix(TOKEN) + ending) for ending in (INDEX, MASK))
    return PackedArrays(index, mask if mask.is_file() else None) if index.is_file() else None


def find_padded(path: Path) -> PaddedRows | None:
    """The mask beside a `.bin`, and its shape; None where there is none."""
    masks = [mask for mask in (Path(f"{path}.mask"), path.with_suffix(".mask")) if mask.is_file()]
    if not masks:
        return None
    where = path.parent / SHAPE
    try:
        content = read_json(where)
        shape: Any = content.get(path.stem, content.get("shape")) if isinstance(content, dict) else content
        rows, width = shape
        if type(rows) is not int or type(width) is not int:
            raise TypeError("it is not two whole numbers")
    except (OSError, ValueError, TypeError) as error:
        raise SourceError(
            f"{masks[0]}: is a mask of padded rows, and {where} does not give their shape ({error}). "
            f'Write {{"{path.stem}": [rows, tokens of a row]}} there, or delete the mask to read a flat file.'
        ) from None
    pad_token, config = _pad_token(path.parent / WRITTEN_BY)
    return PaddedRows(masks[0], rows, width, pad_token, config)


def _pad_token(path: Path) -> tuple[int, Path] | tuple[None, None]:
    """The token that pads rows on the left, and the config.json that names it; None and None if that names none."""
    try:
        content = read_json(path)
    except (OSError, ValueError):
        return None, None
    found = content.get("pad_token") if isinstance(content, dict) else None
    return (found, path) if isinstance(found, int) and not isinstance(found, bool) else (None, None)


def read_npy_header(file: BinaryIO) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """The shape, Fortran order and dtype of an `.npy`; `file` is then at the first value."""
    read = npy.read_array_header_1_0 if npy.read_magic(file) == (1, 0) else npy.read_array_header_2_0
    return read(file)


def map_npy(path: Path) -> NDArray[Any]:
    """An `.npy` with a header, mapped; an array of Python objects is refused."""
    with open(path, "rb") as file:
        try:
            shape, fortran, dtype = read_npy_header(file)
            if dtype.hasobject or fortran:
                raise ValueError(f"it holds {dtype}")
            return np.frombuffer(map_file(path), dtype, int(np.prod(shape)), file.tell()).reshape(shape)
        except Exception as error:  # garbage fails in many ways, from tokenize to struct
            raise SourceError(f"{path}: cannot be read as an array ({error}). Write or copy it again.") from None


def cached_loss(cache: Path, key: str, find: Callable[[], Iterator[Loss]], num_tokens: int) -> Path:
    """The file of the loss bytes cached under `key`; computed by `find`, slice by slice, the first time."""
    path = cache / "loss" / key
    if not path.is_file() or path.stat().st_size != num_tokens:
        with cached_draft(path) as file:
            for loss in find():
                file.write(loss.data)
    return path


def cached_documents(cache: Path, key: str, padded: PaddedRows, tokens: Tokens) -> tuple[Path, Path, Path]:
    """The files of padded rows without their padding, cached under `key`: tokens, ends and loss bytes."""
    tokens_at, ends_at, loss_at = (cache / "unpadded" / f"{key}.{ending}" for ending in ("tokens", "ends", "loss"))
    if not _documents_fit(tokens_at, ends_at, loss_at, tokens.itemsize):
        end = 0
        with cached_draft(tokens_at) as into, cached_draft(ends_at) as index, cached_draft(loss_at) as loss_file:
            for part, lengths, loss in padded.documents(tokens):
                into.write(np.ascontiguousarray(part).data)
                index.write((end + np.cumsum(lengths)).astype("<i8").data)
                loss_file.write(loss.data)
                end += len(part)
    return tokens_at, ends_at, loss_at


def _documents_fit(tokens_at: Path, ends_at: Path, loss_at: Path, itemsize: int) -> bool:
    """Whether the three files are there and none is truncated: a kernel would read behind the end of one that is."""
    if not all(path.is_file() for path in (tokens_at, ends_at, loss_at)):
        return False
    num_tokens = loss_at.stat().st_size
    return tokens_at.stat().st_size == num_tokens * itemsize and (num_tokens == 0 or ends_fit(ends_at, num_tokens))

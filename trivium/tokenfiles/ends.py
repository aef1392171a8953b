"""ends: where the documents of a file end, in tokens, where the file does not store it in that form.

Flat files are searched once for the id that ends or starts a document, Megatron's index is turned from
sequences into documents; both in slices, at the speed of the disk (3 billion tokens a second from memory).
The answer is kept in the cache folder as 8 bytes a document, like a `.ds.index`, and mapped from then on.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trivium.errors import SourceError
from trivium.files import cached_draft, map_file
from trivium.screen import under_way

SLICE = 1 << 20  # entries read at a time, which fit into the processor's cache
Ends = NDArray[np.int64]
Tokens = NDArray[np.integer[Any]]


def map_ends(path: Path) -> Ends:
    """Document ends kept as 8 bytes each; int64, since NumPy turns uint64 with int64 into floats."""
    return np.frombuffer(map_file(path), dtype="<i8")


def cached_ends(cache: Path, key: str, find: Callable[[], Iterator[Ends]], num_tokens: int) -> Path:
    """The file of the ends cached under `key`; computed by `find`, slice by slice, if it is missing or does not fit."""
    path = cache / "ends" / f"{key}.index"
    if not ends_fit(path, num_tokens):
        with under_way("looking for the ends of documents") as done, cached_draft(path) as file:
            for ends in find():
                file.write(ends.astype("<i8", copy=False).tobytes())
                done(int(ends[-1]) / max(1, num_tokens) if len(ends) else 0.0)
    return path


def ends_fit(path: Path, num_tokens: int) -> bool:
    """Whether a file of document ends is there and whole, as far as its size and its last end tell."""
    if not path.is_file() or path.stat().st_size % 8 or not path.stat().st_size:
        return False
    with open(path, "rb") as file:
        file.seek(-8, os.SEEK_END)
        return int.from_bytes(file.read(8), "little") == num_tokens


def ends_by_mark(tokens: Tokens, eos: int | None, bos: int | None) -> Iterator[Ends]:
    """The ends of documents that end after `eos`, or start at `bos`; the rest of the file is one too.

    eos = 0: 5 6 0 7 0 8 -> 3 5 6        bos = 0: 0 5 6 0 7 -> 3 5        5 0 7 -> 1 3
    """
    mark, after = (eos, 1) if eos is not None else (bos, 0)
    last = 0
    for start in range(0, len(tokens), SLICE):
        ends = np.flatnonzero(tokens[start : start + SLICE] == mark).astype(np.int64) + (start + after)
        if len(ends) and ends[0] == 0:  # a `bos` at the start of the file ends no document
            ends = ends[1:]
        if len(ends):
            last = int(ends[-1])
            yield ends
    if last < len(tokens):
        yield np.array([len(tokens)], dtype=np.int64)


@dataclass(frozen=True, slots=True)
class MegatronIndex:
    """The arrays of an `.idx`: the length and the place of each sequence, and the sequences of each document."""

    path: Path
    token_size: int
    lengths: NDArray[np.int32]  # of each sequence, in tokens
    places: Ends  # of each sequence in the `.bin`, in bytes
    documents: Ends  # the number of sequences before each document; the last entry is the number of all

    @property
    def num_tokens(self) -> int:
        """The tokens of all sequences, if these lie one after the other."""
        return int(self.places[-1]) // self.token_size + int(self.lengths[-1]) if len(self.lengths) else 0

    def ends(self) -> Iterator[Ends]:
        """The end of each document, in tokens: where the sequence after its last one begins."""
        self._check_sequences()
        if len(self.documents) == 0 or self.documents[0] != 0 or self.documents[-1] != len(self.lengths):
            covered = f"{self.documents[0]} to {self.documents[-1]}" if len(self.documents) else "none"
            raise SourceError(
                f"{self.path}: its documents cover sequences {covered}, and it has {len(self.lengths):,}. "
                f"Each sequence belongs to a document. End the last document and write the index again."
            )
        for start in range(1, len(self.documents), SLICE):
            numbers = self.documents[start : start + SLICE]
            if np.any(numbers < self.documents[start - 1 : start - 1 + len(numbers)]):
                raise SourceError(f"{self.path}: its documents are out of order. The index is damaged: write it again.")
            inner = np.minimum(numbers, len(self.places) - 1)
            yield np.where(numbers < len(self.places), self.places[inner] // self.token_size, self.num_tokens)

    def _check_sequences(self) -> None:
        """Each sequence begins where the one before it ended."""
        place = 0
        for start in range(0, len(self.lengths), SLICE):
            lengths = self.lengths[start : start + SLICE].astype(np.int64)
            afterwards = place + np.cumsum(lengths * self.token_size)
            expected = afterwards - lengths * self.token_size
            wrong = np.flatnonzero((self.places[start : start + SLICE] != expected) | (lengths < 0))
            if len(wrong):
                number = int(wrong[0])
                raise SourceError(
                    f"{self.path}: sequence {start + number:,} has {lengths[number]:,} tokens at byte "
                    f"{self.places[start + number]:,}, and byte {expected[number]:,} is where it should be. "
                    f"Sequences lie one after the other, so the index is damaged: write it again."
                )
            place = int(afterwards[-1])

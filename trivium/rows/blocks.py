"""A source's documents -> blocks of neighbouring documents -> spans.

A block is the part of a file between two multiples of `block_tokens`: it has the documents that start
there. A longer document is cut into pieces of `block_tokens`, and each piece belongs to the block in which
it starts; so does a file without documents. Nothing is stored for a block: two binary searches in the
mapped document ends find it, so that a trillion tokens need no more memory than a million.

Files of 10 tokens with documents of 3, 5 and 2, blocks of 4 tokens:

    tokens     0 1 2 3 4 5 6 7 8 9
    documents  a a a b b b b b c c
    block 0    a and b[0:4]        block 1    b[4:5] (it starts at token 7)        block 2    c
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from trivium.errors import SourceError
from trivium.rows.kernels import address_of, array_at, compiled
from trivium.rows.order import uniform, uniforms
from trivium.rows.piece import length_of, pack_word
from trivium.seeds import derive_key
from trivium.tokenfiles.manifest import LARGEST_ID
from trivium.tokenfiles.open import TokenFile

Int64s = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Spans:
    """Stretches of documents, each in one file."""

    pieces: Int64s  # (spans, 2), two words each, as `piece` lays them out; none is empty

    def __len__(self) -> int:
        return len(self.pieces)

    @property
    def length(self) -> Int64s:
        """Tokens of each."""
        return length_of(self.pieces[:, 1])


@dataclass(frozen=True, slots=True)
class FileTable:
    """Where the kernels find a source's files: addresses of mapped arrays, a row a file."""

    tokens: Int64s  # address of the tokens
    itemsize: Int64s  # bytes of a token
    loss: Int64s  # address of the loss bytes; 0 where every token counts in the loss
    num_ids: Int64s  # how many ids the dtype of the tokens has, from 0 on; those of a batch are int32


class Blocks(Protocol):
    """What order, packing and gather need of a source; `FileBlocks` reads files, a benchmark may compute."""

    @property
    def name(self) -> str:
        """The source's name, from which its keys are derived."""

    @property
    def num_blocks(self) -> int:
        """Blocks of the whole source; some may be empty."""

    @property
    def window_blocks(self) -> int:
        """Blocks that are packed and shuffled together."""

    @property
    def fingerprint(self) -> str:
        """A hash of all that decides which spans a block has."""

    @property
    def table(self) -> FileTable:
        """Where the tokens are."""

    def spans(self, blocks: Int64s) -> Spans:
        """The spans of these blocks, one block after the other."""


@dataclass(frozen=True, slots=True)
class HoldOut:
    """Which documents are kept from training: those whose draw is below `share`."""

    share: float
    wanted: bool  # the held-out documents themselves, or all the others

    @property
    def rule(self) -> tuple[np.uint64, bool]:
        """The share as a limit for a 64-bit draw, and on which side of it the wanted documents are."""
        return np.uint64(max(1, min(2**64 - 1, int(self.share * 2**64)))), self.wanted


class FileBlocks:
    """The blocks of token files."""

    def __init__(
        self,
        name: str,
        files: Sequence[TokenFile],
        fingerprint: str,
        block_tokens: int,
        window_blocks: int,
        hold_out: HoldOut | None = None,
    ) -> None:
        self.name = name
        self.files = tuple(files)
        self.block_tokens = block_tokens
        self.window_blocks = window_blocks
        self.hold_out = hold_out
        self.fingerprint = f"{fingerprint}/{block_tokens}/{window_blocks}/{hold_out}"
        # Arrays that kernels read by address are kept here, so that they live as long as the addresses.
        self._ends = [np.ascontiguousarray(file.ends, np.int64) for file in files]
        self._ends_at = np.array([address_of(ends) for ends in self._ends], np.int64)
        self._num_documents = np.array([len(ends) for ends in self._ends], np.int64)
        self._num_tokens = np.array([len(file.tokens) for file in files], np.int64)
        self._first_document = np.concatenate(([0], np.cumsum(self._num_documents)))
        self._first_block = np.cumsum([0, *(-(-len(file.tokens) // block_tokens) for file in files)], dtype=np.int64)
        self._keys = np.array([derive_key(0, "hold out", name, file.name) for file in files], np.uint64)
        self.table = FileTable(
            tokens=np.array([address_of(file.tokens) for file in files], np.int64),
            itemsize=np.array([file.tokens.itemsize for file in files], np.int64),
            loss=np.array([0 if file.loss is None else address_of(file.loss) for file in files], np.int64),
            num_ids=np.array([min(np.iinfo(file.dtype).max, LARGEST_ID) + 1 for file in files], np.int64),
        )

    @property
    def num_documents(self) -> int:
        """Documents of all files, those held out too."""
        return int(self._first_document[-1])

    @property
    def num_blocks(self) -> int:
        """Blocks of all files."""
        return int(self._first_block[-1])

    def spans(self, blocks: Int64s) -> Spans:
        """The spans of these blocks, one block after the other; refuses a file that has changed since."""
        blocks = np.asarray(blocks, np.int64)
        self._check_files(blocks)
        limit, wanted = (np.uint64(0), False) if self.hold_out is None else self.hold_out.rule
        files = self._ends_at, self._num_documents, self._num_tokens, self._first_block, self._keys
        pieces, damaged = _find_spans(blocks, *files, self.block_tokens, limit, wanted)
        if damaged >= 0:
            raise self._damaged_index(int(blocks[damaged]))
        return Spans(pieces)

    def _damaged_index(self, block: int) -> SourceError:
        number = int(np.searchsorted(self._first_block, block, side="right")) - 1
        file = self.files[number]
        token = (block - int(self._first_block[number])) * self.block_tokens
        return SourceError(
            f"{file.parts[min(1, len(file.parts) - 1)].path}: documents near token {token:,} end before they start, "
            f"or behind the end of {file.path.name}. The index is damaged: copy or write it again."
        )

    def is_held_out(self, document: int) -> bool:
        """Whether a document is kept from training."""
        if self.hold_out is None:
            return False
        file, number = self.place_of(document)
        draw = uniforms(int(self._keys[file]), [number])[0]
        return bool(draw < self.hold_out.rule[0])

    def has_documents(self, file: int) -> NDArray[np.bool_]:
        """Which documents of a file these blocks have: all, or those on their side of the hold-out."""
        if self.hold_out is None:
            return np.ones(int(self._num_documents[file]), np.bool_)
        limit, wanted = self.hold_out.rule
        draws = uniforms(int(self._keys[file]), np.arange(self._num_documents[file]))
        chosen: NDArray[np.bool_] = (draws < limit) == wanted
        return chosen

    def _check_files(self, blocks: Int64s) -> None:
        """A mapped file that was truncated would end the process when it is read: look before.

        One that was deleted is still there for who has mapped it, so that a run outlives its cache folder.
        """
        for number in np.unique(np.searchsorted(self._first_block, blocks, side="right") - 1).tolist():
            for part in self.files[number].mapped:
                try:
                    size = os.stat(part.path).st_size
                except FileNotFoundError:
                    continue
                except OSError as error:
                    found = f"cannot be read any more: {error.strerror}"
                else:
                    if size == part.size:
                        continue
                    found = f"had {part.size:,} bytes, has {size:,}"
                first = int(self._first_document[number])
                named = f"{part.path} (documents of {self.name} from {first:,} on)"
                raise SourceError(f"{named}: {found}. Files must stay as they are while a run reads them.")

    def document_at(self, file: int, offset: int) -> tuple[int, int]:
        """The number of the document that holds a token, and where in the file it starts."""
        ends = self._ends[file]
        number = int(np.searchsorted(ends, offset, side="right"))
        return int(self._first_document[file]) + number, int(ends[number - 1]) if number else 0

    def place_of(self, document: int) -> tuple[int, int]:
        """A document's file, and its number in it; IndexError where the source has no such document."""
        if not 0 <= document < self._first_document[-1]:
            raise IndexError(document)
        file = int(np.searchsorted(self._first_document, document, side="right")) - 1
        return file, document - int(self._first_document[file])

    def document_span(self, document: int) -> tuple[int, int, int]:
        """A document's file, first token and end; IndexError where the source has no such document."""
        file, number = self.place_of(document)
        ends = self._ends[file]
        return file, int(ends[number - 1]) if number else 0, int(ends[number])

    def task_of(self, document: int) -> int | None:
        """The number of a document's task, where the source mixes several."""
        file, number = self.place_of(document)
        tasks = self.files[file].tasks
        return None if tasks is None else int(tasks[number])

    def blocks_of(self, document: int) -> Int64s:
        """The blocks in which a document, or a piece of it, starts."""
        file, start, end = self.document_span(document)
        pieces = np.arange(start, max(end, start + 1), self.block_tokens)
        blocks: Int64s = self._first_block[file] + np.unique(pieces // self.block_tokens)
        return blocks

    def count(self) -> tuple[int, int]:
        """Documents and tokens; with a hold-out one pass over all document ends."""
        if self.hold_out is None:
            return int(self._first_document[-1]), sum(len(file.tokens) for file in self.files)
        documents = tokens = 0
        for ends, key in zip(self._ends, self._keys, strict=True):
            found = _count_documents(ends, key, *self.hold_out.rule)
            documents, tokens = documents + found[0], tokens + found[1]
        return documents, tokens


@compiled
def _count_documents(ends: Int64s, key: np.uint64, limit: np.uint64, wanted: bool) -> tuple[int, int]:
    documents, tokens, start = 0, 0, 0
    for number in range(ends.size):
        if (uniform(key, number) < limit) == wanted:
            documents += 1
            tokens += ends[number] - start
        start = ends[number]
    return documents, tokens


@compiled
def _first_above(ends: Int64s, token: int) -> int:
    """The first document that ends after a token: the one that holds it."""
    low, high = 0, ends.size
    while low < high:
        middle = (low + high) // 2
        if ends[middle] > token:
            high = middle
        else:
            low = middle + 1
    return low


@compiled
def _find_spans(
    blocks: Int64s,
    ends_at: Int64s,
    num_documents: Int64s,
    num_tokens: Int64s,
    first_block: Int64s,
    keys: NDArray[np.uint64],
    block_tokens: int,
    limit: np.uint64,
    wanted: bool,
) -> tuple[Int64s, int]:
    """Two passes over the blocks: how many spans at the most, then the spans.

    No end is trusted: a document that ends before it starts, or behind its file, stops the search. The second
    value is the place in `blocks` where that was, or -1.
    """
    most = 0
    first_document = np.empty(blocks.size, np.int64)
    for index in range(blocks.size):
        file = np.searchsorted(first_block, blocks[index], side="right") - 1
        begin = (blocks[index] - first_block[file]) * block_tokens
        ends = array_at(ends_at[file], (num_documents[file],), np.int64)
        first_document[index] = _first_above(ends, begin)
        most += min(_first_above(ends, begin + block_tokens), ends.size - 1) - first_document[index] + 1
    pieces = np.empty((most, 2), np.int64)
    count = 0
    for index in range(blocks.size):
        file = np.searchsorted(first_block, blocks[index], side="right") - 1
        begin = (blocks[index] - first_block[file]) * block_tokens
        ends = array_at(ends_at[file], (num_documents[file],), np.int64)
        number = first_document[index]
        start = ends[number - 1] if number else 0
        while number < ends.size:
            if not 0 <= start <= ends[number] <= num_tokens[file]:
                return pieces[:0], index
            # The piece of a long document that starts in this block; of a document that starts here, its first.
            piece = (
                start if start >= begin else start + (begin - start + block_tokens - 1) // block_tokens * block_tokens
            )
            if piece >= begin + block_tokens:
                if start >= begin:
                    break
            elif piece < ends[number] and (limit == 0 or (uniform(keys[file], number) < limit) == wanted):
                if count == most:
                    return pieces[:0], index
                stop = min(piece + block_tokens, ends[number])
                is_last = stop == ends[number]
                pieces[count, 0] = piece
                pieces[count, 1] = pack_word(file, stop - piece, is_last, not is_last)
                count += 1
            start = ends[number]
            number += 1
    return pieces[:count], -1

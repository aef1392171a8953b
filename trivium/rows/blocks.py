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
from trivium.rows.lengths import ALL_LENGTHS, LengthRange, band_of
from trivium.rows.order import uniform, uniforms
from trivium.rows.piece import file_of, length_of, pack_word
from trivium.seeds import derive_key
from trivium.tokenfiles.manifest import LARGEST_ID
from trivium.tokenfiles.open import TokenFile, UnopenedFile

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
    """Where the kernels find a source's files: addresses of mapped arrays, a row a file; 0 until a file is opened."""

    tokens: Int64s  # address of the tokens
    itemsize: Int64s  # bytes of a token
    loss: Int64s  # address of the loss bytes; 0 where every token counts in the loss
    num_ids: Int64s  # how many ids the dtype of the tokens has, from 0 on; those of a batch are int32
    ends: Int64s  # address of the documents' ends, in tokens
    documents: Int64s  # how many these are


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
        """Where the tokens are, of the files that are open."""

    @property
    def num_opened(self) -> int:
        """How many these are."""

    def open_files(self, pieces: Int64s) -> None:
        """Open the files that pieces are of, before anything is read from them."""

    @property
    def lengths(self) -> LengthRange:
        """Which documents of the source these blocks have, by length."""

    def spans(self, blocks: Int64s, bands: Int64s | None = None) -> Spans:
        """The spans of these blocks, one block after the other; `bands` has a mask of bands for each block."""

    def in_bands(self, spans: Spans, mask: int) -> Spans:
        """Those spans whose document is in one of these bands."""


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
        files: Sequence[TokenFile | UnopenedFile],
        fingerprint: str,
        block_tokens: int,
        window_blocks: int,
        hold_out: HoldOut | None = None,
        lengths: LengthRange = ALL_LENGTHS,
    ) -> None:
        self.name = name
        self.files = tuple(files)
        self.block_tokens = block_tokens
        self.window_blocks = window_blocks
        self.hold_out = hold_out
        self.lengths = lengths
        self._content = fingerprint
        self.fingerprint = f"{fingerprint}/{block_tokens}/{window_blocks}/{hold_out}"
        if not lengths.is_whole:
            self.fingerprint += "/{}-{}".format(*lengths.limits)
        # Arrays that kernels read by address are kept here, so that they live as long as the addresses.
        self._ends: dict[int, Int64s] = {}  # of the files that are open
        self._num_documents = np.array([file.num_documents for file in files], np.int64)
        self._num_tokens = np.array([file.num_tokens for file in files], np.int64)
        self._first_document = np.concatenate(([0], np.cumsum(self._num_documents)))
        self._first_block = np.cumsum([0, *(-(-file.num_tokens // block_tokens) for file in files)], dtype=np.int64)
        self._bounds = np.array(lengths.bounds, np.int64)
        self._keys = np.array([derive_key(0, "hold out", name, file.name) for file in files], np.uint64)
        self.table = FileTable(
            tokens=np.zeros(len(files), np.int64),
            itemsize=np.array([file.dtype.itemsize for file in files], np.int64),
            loss=np.zeros(len(files), np.int64),
            num_ids=np.array([min(np.iinfo(file.dtype).max, LARGEST_ID) + 1 for file in files], np.int64),
            ends=np.zeros(len(files), np.int64),
            documents=self._num_documents,
        )
        for number, file in enumerate(files):
            if isinstance(file, TokenFile):
                self.opened(number)

    def opened(self, number: int) -> TokenFile:
        """A file, which is opened when it is first asked for."""
        file = self.files[number].open()
        if number not in self._ends:
            ends = np.ascontiguousarray(file.ends, np.int64)
            self.table.ends[number] = address_of(ends)
            self.table.tokens[number] = address_of(file.tokens)
            self.table.loss[number] = 0 if file.loss is None else address_of(file.loss)
            self._ends[number] = ends
        return file

    @property
    def num_opened(self) -> int:
        """Files that are open: the table has their addresses."""
        return len(self._ends)

    def open_files(self, pieces: Int64s) -> None:
        """Open the files that pieces are of; those of spans are open, those of a window that was kept may not be."""
        if self.num_opened < len(self.files):
            for number in np.unique(file_of(pieces[:, 1])).tolist():
                self.opened(number)

    def _ends_of(self, number: int) -> Int64s:
        self.opened(number)
        return self._ends[number]

    def within(self, lengths: LengthRange) -> "FileBlocks":
        """The same blocks with the documents of a range of lengths."""
        return FileBlocks(
            self.name, self.files, self._content, self.block_tokens, self.window_blocks, self.hold_out, lengths
        )

    @property
    def num_documents(self) -> int:
        """Documents of all files, those held out and those of other lengths too."""
        return int(self._first_document[-1])

    @property
    def num_blocks(self) -> int:
        """Blocks of all files."""
        return int(self._first_block[-1])

    def spans(self, blocks: Int64s, bands: Int64s | None = None) -> Spans:
        """The spans of these blocks, one block after the other; refuses a file that has changed since."""
        blocks = np.asarray(blocks, np.int64)
        self._check_files(blocks)
        limit, wanted = (np.uint64(0), False) if self.hold_out is None else self.hold_out.rule
        if bands is not None:
            bands = bands & self.lengths.mask
        else:
            bands = np.full(0 if self.lengths.is_whole else blocks.size, self.lengths.mask, np.int64)
        files = self.table.ends, self._num_documents, self._num_tokens, self._first_block, self._keys
        pieces, damaged = _find_spans(blocks, *files, self.block_tokens, limit, wanted, self._bounds, bands)
        if damaged >= 0:
            raise self._damaged_index(int(blocks[damaged]))
        return Spans(pieces)

    def in_bands(self, spans: Spans, mask: int) -> Spans:
        """Those spans whose document is in one of these bands."""
        wanted = np.zeros(len(spans), np.bool_)
        offsets, files = spans.pieces[:, 0], file_of(spans.pieces[:, 1])
        for file in np.unique(files).tolist():
            here = files == file
            ends = self._ends_of(file)
            number = np.searchsorted(ends, offsets[here], side="right")
            length = ends[number] - np.where(number > 0, ends[number - 1], 0)
            wanted[here] = (mask >> np.searchsorted(self._bounds, length, side="right")) & 1 > 0
        return Spans(spans.pieces[wanted])

    def _damaged_index(self, block: int) -> SourceError:
        number = int(np.searchsorted(self._first_block, block, side="right")) - 1
        file = self.opened(number)
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
        """Which documents of a file these blocks have: those of their lengths, on their side of the hold-out."""
        shortest, limit = self.lengths.limits
        lengths = np.diff(self._ends_of(file), prepend=0)
        chosen: NDArray[np.bool_] = (lengths >= shortest) & (lengths < limit)
        if self.hold_out is not None:
            below, wanted = self.hold_out.rule
            chosen &= (uniforms(int(self._keys[file]), np.arange(self._num_documents[file])) < below) == wanted
        return chosen

    def _check_files(self, blocks: Int64s) -> None:
        """A mapped file that was truncated would end the process when it is read: look before.

        One that was deleted is still there for who has mapped it, so that a run outlives its cache folder.
        """
        for number in np.unique(np.searchsorted(self._first_block, blocks, side="right") - 1).tolist():
            for part in self.opened(number).mapped:
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
        ends = self._ends_of(file)
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
        ends = self._ends_of(file)
        return file, int(ends[number - 1]) if number else 0, int(ends[number])

    def task_of(self, document: int) -> int | None:
        """The number of a document's task, where the source mixes several."""
        file, number = self.place_of(document)
        tasks = self.opened(file).tasks
        return None if tasks is None else int(tasks[number])

    def blocks_of(self, document: int) -> Int64s:
        """The blocks in which a document, or a piece of it, starts."""
        file, start, end = self.document_span(document)
        pieces = np.arange(start, max(end, start + 1), self.block_tokens)
        blocks: Int64s = self._first_block[file] + np.unique(pieces // self.block_tokens)
        return blocks

    def count(self) -> tuple[int, int]:
        """Documents and tokens; with a hold-out, or of some lengths only, one pass over all document ends."""
        if self.hold_out is None and self.lengths.is_whole:
            return int(self._first_document[-1]), int(self._num_tokens.sum())
        rule = (np.uint64(0), False) if self.hold_out is None else self.hold_out.rule
        documents = tokens = 0
        for number, key in enumerate(self._keys):
            found = _count_documents(self._ends_of(number), key, *rule, *self.lengths.limits)
            documents, tokens = documents + found[0], tokens + found[1]
        return documents, tokens


@compiled
def _count_documents(
    ends: Int64s, key: np.uint64, limit: np.uint64, wanted: bool, shortest: int, too_long: int
) -> tuple[int, int]:
    documents, tokens, start = 0, 0, 0
    for number in range(ends.size):
        length = ends[number] - start
        if shortest <= length < too_long and (limit == 0 or (uniform(key, number) < limit) == wanted):
            documents += 1
            tokens += length
        start = ends[number]
    return documents, tokens


@compiled
def first_above(ends: Int64s, token: int) -> int:
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
    bounds: Int64s,
    bands: Int64s,
) -> tuple[Int64s, int]:
    """Two passes over the blocks: how many spans at the most, then the spans.

    No end is trusted: a document that ends before it starts, or behind its file, stops the search. The second
    value is the place in `blocks` where that was, or -1. `bands` is empty where documents of all lengths are wanted.
    """
    most = 0
    first_document = np.empty(blocks.size, np.int64)
    for index in range(blocks.size):
        file = np.searchsorted(first_block, blocks[index], side="right") - 1
        begin = (blocks[index] - first_block[file]) * block_tokens
        ends = array_at(ends_at[file], (num_documents[file],), np.int64)
        first_document[index] = first_above(ends, begin)
        most += min(first_above(ends, begin + block_tokens), ends.size - 1) - first_document[index] + 1
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
            elif (
                piece < ends[number]
                and (limit == 0 or (uniform(keys[file], number) < limit) == wanted)
                and (bands.size == 0 or bands[index] >> band_of(bounds, ends[number] - start) & 1)
            ):
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

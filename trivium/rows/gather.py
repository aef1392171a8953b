"""Rows -> the arrays of a batch: one kernel call, straight from the mapped files and from windows of streams in memory.

Boundaries come from the rows' pieces; no token is looked at twice. The loop that copies ids finds the largest of them,
so that no id beyond the vocabulary reaches a batch. Writes about a billion tokens a second.
"""

import numpy as np
from numpy.typing import NDArray

from trivium.rows.batch import IGNORED, PADDING
from trivium.rows.blocks import first_above
from trivium.rows.goldfish import drop
from trivium.rows.kernels import array_at, compiled
from trivium.rows.piece import continues, file_of, length_of

Int64s = NDArray[np.int64]
Int32s = NDArray[np.int32]

# A row to gather: the address of its pieces, how many they are, and the address of its source's table of files. That
# table is (files, 6): address of the tokens, bytes of a token, address of the loss bytes or 0, size of the vocabulary,
# address of the documents' ends, number of documents.
ROW_ADDRESS, ROW_PIECES, ROW_FILES = 0, 1, 2
FILE_BYTES = 48  # of one file in the table


@compiled
def gather(
    rows: Int64s, arrays: NDArray[np.int32], limit: np.uint64, h: int, oldest: np.uint64
) -> tuple[int, int, int]:
    """Fill `arrays` (4, rows, seq_len): tokens, targets, segments, positions; `rows` is (rows, 3) as above.

    `limit`, `h` and `oldest` are a goldfish mask's rule. Stops at the first piece with an id that is not known, and
    gives its row, its file and its first token; else row -1.
    """
    seq_len = arrays.shape[2]
    before = np.empty(max(0, h - 1), np.int32)
    for row in range(rows.shape[0]):
        pieces = array_at(rows[row, ROW_ADDRESS], (rows[row, ROW_PIECES], 2), np.int64)
        tokens, targets, segments, positions = arrays[0, row], arrays[1, row], arrays[2, row], arrays[3, row]
        column = 0
        for piece in range(pieces.shape[0]):
            word = pieces[piece, 1]
            file = array_at(rows[row, ROW_FILES] + file_of(word) * FILE_BYTES, (6,), np.int64)
            length = length_of(word)
            # Of a row of crop the last token is a target only.
            inputs = min(length, seq_len - column)
            targeted = inputs if inputs < length or continues(word) else inputs - 1
            stop = column + inputs
            known = _copy(file[0], file[1], pieces[piece, 0], file[3], tokens[column:stop])
            _follow(tokens[column:stop], targets[column : stop - 1])
            if 0 < inputs == targeted:
                known &= _copy(file[0], file[1], pieces[piece, 0] + inputs, file[3], targets[stop - 1 : stop])
            if not known:
                return row, file_of(word), pieces[piece, 0]
            targets[column + targeted : stop] = IGNORED
            if file[2]:
                _mask(file[2] + pieces[piece, 0] + 1, targets[column : column + targeted])
            if limit:
                known_before = before[: _tokens_before(file[4], file[5], pieces[piece, 0], before.size)]
                _copy(file[0], file[1], pieces[piece, 0] - known_before.size, file[3], known_before)
                drop(known_before, tokens[column:stop], targets[column : column + targeted], limit, h, oldest)
            segments[column:stop] = piece
            _count_up(positions[column:stop])
            column = stop
        tokens[column:] = 0
        targets[column:] = IGNORED
        segments[column:] = PADDING
        positions[column:] = 0
    return -1, 0, 0


@compiled
def _tokens_before(ends_at: int, num_documents: int, offset: int, most: int) -> int:
    """How many tokens of its document are before a token of a file, counted up to `most`."""
    ends = array_at(ends_at, (num_documents,), np.int64)
    number = first_above(ends, offset)
    return min(most, offset - (ends[number - 1] if number else 0))


@compiled
def _copy(address: int, itemsize: int, offset: int, num_ids: int, out: Int32s) -> bool:
    """Tokens of any integer type into int32; whether all are below `num_ids`, which is at most 2**31.

    One loop for each type, so that each is vectorised. Read as unsigned, an id below 0 is a large one.
    """
    if itemsize == 2:
        tokens16 = array_at(address + offset * 2, out.shape, np.uint16)
        largest16 = np.int32(0)
        for index in range(out.size):
            token = np.int32(tokens16[index])
            out[index] = token
            largest16 = max(largest16, token)
        return bool(largest16 < num_ids)
    if itemsize == 4:
        tokens32 = array_at(address + offset * 4, out.shape, np.uint32)
        largest32 = np.uint32(0)
        for index in range(out.size):
            out[index] = np.int32(tokens32[index])
            largest32 = max(largest32, tokens32[index])
        return bool(np.int64(largest32) < num_ids)
    if itemsize == 8:
        tokens64 = array_at(address + offset * 8, out.shape, np.uint64)
        largest64 = np.uint64(0)
        for index in range(out.size):
            out[index] = np.int32(tokens64[index])
            largest64 = max(largest64, tokens64[index])
        return bool(largest64 < np.uint64(num_ids))
    tokens8 = array_at(address + offset, out.shape, np.uint8)
    largest8 = np.int32(0)
    for index in range(out.size):
        token = np.int32(tokens8[index])
        out[index] = token
        largest8 = max(largest8, token)
    return bool(largest8 < num_ids)


@compiled
def _follow(tokens: Int32s, targets: Int32s) -> None:
    """The target of every token but the last is the next one."""
    for index in range(targets.size):
        targets[index] = tokens[index + 1]


@compiled
def _mask(address: int, targets: Int32s) -> None:
    """Ignore the targets whose loss byte is 0."""
    loss = array_at(address, targets.shape, np.uint8)
    for index in range(targets.size):
        if loss[index] == 0:
            targets[index] = IGNORED


@compiled
def _count_up(out: Int32s) -> None:
    for index in range(out.size):
        out[index] = np.int32(index)

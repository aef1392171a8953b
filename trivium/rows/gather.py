"""Rows -> the arrays of a batch: one kernel call, straight from the mapped files and from windows of streams in memory.

Boundaries come from the rows' pieces; no token is looked at twice. Writes about a billion tokens a second.
"""

import numpy as np
from numpy.typing import NDArray

from trivium.rows.batch import IGNORED, PADDING
from trivium.rows.kernels import array_at, compiled
from trivium.rows.piece import continues, file_of, length_of

Int64s = NDArray[np.int64]
Int32s = NDArray[np.int32]

# A row to gather: the address of its pieces, how many they are, and the address of its source's table of files.
# That table is (files, 3): address of the tokens, bytes of a token, address of the loss bytes or 0.
ROW_ADDRESS, ROW_PIECES, ROW_FILES = 0, 1, 2
FILE_BYTES = 24  # of one file in the table


@compiled
def gather(rows: Int64s, arrays: NDArray[np.int32]) -> None:
    """Fill `arrays` (4, rows, seq_len): tokens, targets, segments, positions; `rows` is (rows, 3) as above."""
    seq_len = arrays.shape[2]
    for row in range(rows.shape[0]):
        pieces = array_at(rows[row, ROW_ADDRESS], (rows[row, ROW_PIECES], 2), np.int64)
        tokens, targets, segments, positions = arrays[0, row], arrays[1, row], arrays[2, row], arrays[3, row]
        column = 0
        for piece in range(pieces.shape[0]):
            word = pieces[piece, 1]
            file = array_at(rows[row, ROW_FILES] + file_of(word) * FILE_BYTES, (3,), np.int64)
            length = length_of(word)
            # Of a row of crop the last token is a target only.
            inputs = min(length, seq_len - column)
            targeted = inputs if inputs < length or continues(word) else inputs - 1
            stop = column + inputs
            _copy(file[0], file[1], pieces[piece, 0], tokens[column:stop])
            _copy(file[0], file[1], pieces[piece, 0] + 1, targets[column : column + targeted])
            targets[column + targeted : stop] = IGNORED
            if file[2]:
                _mask(file[2] + pieces[piece, 0] + 1, targets[column : column + targeted])
            segments[column:stop] = piece
            _count_up(positions[column:stop])
            column = stop
        tokens[column:] = 0
        targets[column:] = IGNORED
        segments[column:] = PADDING
        positions[column:] = 0


@compiled
def _copy(address: int, itemsize: int, offset: int, out: Int32s) -> None:
    """Tokens of any integer type into int32. One loop for each type, so that each is vectorised."""
    if itemsize == 2:
        tokens16 = array_at(address + offset * 2, out.shape, np.uint16)
        for index in range(out.size):
            out[index] = np.int32(tokens16[index])
    elif itemsize == 4:
        tokens32 = array_at(address + offset * 4, out.shape, np.int32)
        for index in range(out.size):
            out[index] = tokens32[index]
    elif itemsize == 8:
        tokens64 = array_at(address + offset * 8, out.shape, np.int64)
        for index in range(out.size):
            out[index] = np.int32(tokens64[index])
    else:
        tokens8 = array_at(address + offset, out.shape, np.uint8)
        for index in range(out.size):
            out[index] = np.int32(tokens8[index])


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

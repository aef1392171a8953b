"""What rows hold, in numbers: of each row of a window, or of the whole window; one pass over its pieces."""

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from trivium.rows.kernels import array_at, compiled
from trivium.rows.piece import continues, file_of, length_of
from trivium.rows.window import Window

Int64s = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Figures:
    """What a stretch of rows holds."""

    rows: int = 0
    tokens: int = 0  # laid in rows
    consumed: int = 0  # these, and those that crop dropped: not read again in this epoch
    pieces: int = 0
    cut: int = 0  # pieces whose document continues behind them
    loss_tokens: int = 0  # tokens that have a target
    unmasked: int = 0  # those of them that the source's loss bytes let through


ROWS, TOKENS, CONSUMED, PIECES, CUT, LOSS_TOKENS, UNMASKED = range(7)
COLUMNS = len(fields(Figures))


def row_figures(window: Window, loss: Int64s) -> Int64s:
    """(rows, figures) of a window; `loss` has the address of each file's loss bytes, or 0."""
    figures = np.zeros((window.num_rows, COLUMNS), np.int64)
    _count(window.row_starts, window.pieces, window.dropped, window.seq_len, loss, figures, True)
    return figures


def window_figures(window: Window, loss: Int64s) -> Int64s:
    """(figures) of all rows of a window together."""
    figures = np.zeros((1, COLUMNS), np.int64)
    _count(window.row_starts, window.pieces, window.dropped, window.seq_len, loss, figures, False)
    whole: Int64s = figures[0]
    return whole


@compiled
def _count(
    row_starts: Int64s,
    pieces: Int64s,
    dropped: NDArray[np.int32],
    seq_len: int,
    loss: Int64s,
    figures: Int64s,
    by_row: bool,
) -> None:
    for row in range(dropped.size):
        into = figures[row if by_row else 0]
        column = 0
        for piece in range(row_starts[row], row_starts[row + 1]):
            word = pieces[piece, 1]
            length = length_of(word)
            # As `gather` does it: of a row of crop the last token is a target only.
            inputs = min(length, seq_len - column)
            targeted = inputs if inputs < length or continues(word) else inputs - 1
            column += inputs
            into[TOKENS] += length
            into[CUT] += continues(word)
            into[LOSS_TOKENS] += targeted
            into[UNMASKED] += _unmasked(loss[file_of(word)], pieces[piece, 0] + 1, targeted)
            into[CONSUMED] += length
        into[ROWS] += 1
        into[PIECES] += row_starts[row + 1] - row_starts[row]
        into[CONSUMED] += dropped[row]


@compiled
def _unmasked(loss: int, first: int, count: int) -> int:
    """Of some targets those whose loss byte is not 0; all of them where the file has no such bytes."""
    if loss == 0:
        return count
    loss_bytes = array_at(loss + first, (count,), np.uint8)
    found = 0
    for index in range(count):
        found += loss_bytes[index] != 0
    return found

"""How one source is read under one setting: position -> window and row, without end.

A reading starts where the one before it stopped: first a window of the spans that were left over, then the
unread blocks of the epoch, then every epoch after it in a new order. Its windows are computed; what is kept
is a table with the rows and figures of each window, made in one pass over what a plan reaches and cached.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cached_property
from hashlib import blake2b
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trivium.data.blocks import Blocks, Spans
from trivium.data.gather import count_unmasked
from trivium.data.order import Permutation, derive_key
from trivium.data.packing import Policy
from trivium.data.window import Window, make_window
from trivium.files import cache_folder, cached_draft

Int64s = NDArray[np.int64]
CACHED_WINDOWS = 4


@dataclass(frozen=True, slots=True)
class RowSettings:
    """What decides how a source's rows are made: another value of any of them is another reading."""

    seq_len: int
    packing: Policy
    seed: int


@dataclass(frozen=True, slots=True)
class BlockOrder:
    """The blocks of one epoch that are unread, in the order in which they will be read."""

    permutation: Permutation
    first: int = 0  # of the permutation, where it is followed as it is
    chosen: Int64s | None = None  # the blocks themselves, where only some of the permutation are unread

    @property
    def num_blocks(self) -> int:
        """Blocks that are unread."""
        whole = self.permutation.size if self.chosen is None else len(self.chosen)
        return whole - self.first

    def take(self, start: int, stop: int) -> Int64s:
        """Some of them, in order."""
        start, stop = self.first + start, self.first + min(stop, self.num_blocks)
        if self.chosen is not None:
            return self.chosen[start:stop]
        return self.permutation.take(np.arange(start, stop))

    def after(self, count: int) -> "BlockOrder":
        """Without the first ones."""
        return BlockOrder(self.permutation, self.first + count, self.chosen)

    def reordered(self, permutation: Permutation) -> "BlockOrder":
        """The same blocks in another order; the same where it is the same order."""
        if permutation == self.permutation:
            return self
        if self.first == 0 and self.chosen is None:
            return BlockOrder(permutation)
        unread = np.zeros(permutation.size, np.bool_)
        unread[self.take(0, self.num_blocks)] = True
        blocks = permutation.take(np.arange(permutation.size))
        return BlockOrder(permutation, 0, blocks[unread[blocks]])


def epoch_order(blocks: Blocks, seed: int, epoch: int) -> Permutation:
    """The order of all blocks in an epoch; keyed by names, so that other sources change nothing."""
    return Permutation(blocks.num_blocks, derive_key(seed, "order", blocks.name, epoch))


@dataclass(frozen=True, slots=True)
class Unread:
    """What of a source is unread: spans left over, then blocks of this epoch, then all that follow."""

    epoch: int
    order: BlockOrder
    key: str  # tells this state from any other
    leftover: Callable[[], Spans] | None = None  # found when it is needed, for it costs a window

    @classmethod
    def all_of(cls, blocks: Blocks, seed: int) -> "Unread":
        """Nothing has been read yet."""
        return cls(0, BlockOrder(epoch_order(blocks, seed, 0)), "start")


@dataclass(frozen=True, slots=True)
class Figures:
    """What a stretch of rows holds."""

    rows: int = 0
    tokens: int = 0  # laid in rows
    consumed: int = 0  # these, and those that crop dropped: not read again in this epoch
    pieces: int = 0
    cut: int = 0  # pieces whose document goes on behind them
    learnt: int = 0  # tokens that have a target
    unmasked: int = 0  # those of them that the source's loss bytes let through


_ROWS, _TOKENS, _CONSUMED, _PIECES, _CUT, _LEARNT, _UNMASKED = range(7)


def row_figures(window: Window, loss: Int64s) -> Int64s:
    """The figures of each row of a window, a row each, in the order of `Figures`.

    `loss` has the address of each file's loss bytes, or 0.
    """
    goes_on, lengths = window.goes_on, window.lengths
    by_row = np.empty((window.num_rows, len(fields(Figures))), np.int64)
    by_row[:, _ROWS] = 1
    by_row[:, _TOKENS] = window.sum_by_row(lengths)
    by_row[:, _CONSUMED] = by_row[:, _TOKENS] + window.dropped
    by_row[:, _PIECES] = np.diff(window.row_starts)
    by_row[:, _CUT] = window.sum_by_row(goes_on)
    # A full row of crop ends in a token that is a target only: it has none of its own.
    full_crop = by_row[:, _TOKENS] > window.seq_len
    by_row[:, _LEARNT] = window.sum_by_row(lengths - ~goes_on) - (full_crop & window.last_goes_on)
    by_row[:, _UNMASKED] = by_row[:, _LEARNT]
    if loss.any():
        by_row[:, _UNMASKED] = count_unmasked(window.row_starts, window.pieces, window.seq_len, loss)
    return by_row


class Reading:
    """An endless sequence of rows of one source under one setting."""

    def __init__(self, blocks: Blocks, settings: RowSettings, unread: Unread, cache: Path | None = None) -> None:
        self.blocks = blocks
        self.settings = settings
        self.unread = unread
        self.order = unread.order.reordered(epoch_order(blocks, settings.seed, unread.epoch))
        identity = (blocks.fingerprint, blocks.name, unread.key, settings)
        self.key = blake2b(repr(identity).encode(), digest_size=16).hexdigest()
        self._kept = (cache or cache_folder()) / "readings" / f"{self.key}.npy"
        self._table = self._read_table()
        self._sums = np.zeros((1, len(fields(Figures))), np.int64)  # figures of all windows before each
        self._windows: OrderedDict[int, Window] = OrderedDict()
        self._lock = threading.RLock()
        self._sum_up()

    @cached_property
    def leftover(self) -> Spans:
        """Spans that the reading before this one left in its last window; read first."""
        assert self.unread.leftover is not None, "nothing was left over"
        return self.unread.leftover()

    def place(self, number: int) -> tuple[int, int]:
        """A window's epoch and its number within it; -1 is the window of what was left over."""
        number -= self.unread.leftover is not None
        if number < 0:
            return self.unread.epoch, -1
        size = self.blocks.window_blocks
        here = -(-self.order.num_blocks // size)
        if number < here:
            return self.unread.epoch, number
        epochs, index = divmod(number - here, -(-self.blocks.num_blocks // size))
        return self.unread.epoch + 1 + epochs, index

    def order_of(self, epoch: int) -> BlockOrder:
        """The order of an epoch's blocks."""
        if epoch == self.unread.epoch:
            return self.order
        return BlockOrder(epoch_order(self.blocks, self.settings.seed, epoch))

    def window(self, number: int) -> Window:
        """A window's rows; the last few are kept."""
        with self._lock:
            if number in self._windows:
                self._windows.move_to_end(number)
                return self._windows[number]
        window = self._make_window(number)
        with self._lock:
            self._windows[number] = window
            while len(self._windows) > CACHED_WINDOWS:
                self._windows.popitem(last=False)
        return window

    def _make_window(self, number: int) -> Window:
        epoch, index = self.place(number)
        size = self.blocks.window_blocks
        taken = slice(index * size, (index + 1) * size)
        spans = self.leftover if index < 0 else self.blocks.spans(self.order_of(epoch).take(taken.start, taken.stop))
        self.blocks.check(spans)
        settings = self.settings
        key = derive_key(settings.seed, "rows", self.blocks.name, epoch, index, settings.seq_len, settings.packing)
        return make_window(spans, settings.packing, settings.seq_len, key)

    def _row_figures(self, window: Window) -> Int64s:
        return row_figures(window, self.blocks.table.loss)

    def locate(self, position: int) -> tuple[int, int]:
        """The window of a position, and the row within it."""
        self.reach(_ROWS, position + 1)
        before = self._sums[:, _ROWS]
        number = int(np.searchsorted(before, position, side="right")) - 1
        return number, position - int(before[number])

    def rows_before(self, number: int) -> int:
        """Rows of all windows before one that was reached."""
        return int(self._sums[number, _ROWS])

    def figures(self, start: int, stop: int) -> Figures:
        """What the rows from one position to another hold."""
        return Figures(*(self._figures_before(stop) - self._figures_before(start)).tolist())

    def _figures_before(self, position: int) -> Int64s:
        number, row = self.locate(position - 1) if position else (-1, 0)
        sums: Int64s = self._sums[number + 1]
        if position and row + 1 < self._table[number, _ROWS]:
            sums = self._sums[number] + self._row_figures(self.window(number))[: row + 1].sum(axis=0)
        return sums

    def position_after(self, start: int, tokens: int) -> int:
        """The first position before which, from `start` on, so many tokens have been read or dropped."""
        wanted = tokens + int(self._figures_before(start)[_CONSUMED])
        self.reach(_CONSUMED, wanted)
        consumed = self._sums[:, _CONSUMED]
        number = int(np.searchsorted(consumed, wanted, side="left")) - 1
        if number < 0:
            return start
        rows = self._row_figures(self.window(number))
        within = np.cumsum(rows[:, _CONSUMED])
        row = int(np.searchsorted(within, wanted - consumed[number], side="left"))
        return self.rows_before(number) + row + 1

    def after(self, position: int) -> Unread:
        """What is unread once the rows before a position have been read."""
        if position == 0:
            return self.unread
        number, row = self.locate(position - 1)
        epoch, index = self.place(number)
        order = self.order_of(epoch)
        if index >= 0:
            order = order.after(min((index + 1) * self.blocks.window_blocks, order.num_blocks))
        key = f"{self.key} after {position}"
        if row + 1 < self._table[number, _ROWS]:
            return Unread(epoch, order, key, lambda: self.window(number).leftover(row + 1))
        if order.num_blocks:
            return Unread(epoch, order, key)
        return Unread(epoch + 1, self.order_of(epoch + 1), key)

    def reach(self, column: int, amount: int) -> None:
        """Make the table reach so many rows or tokens; what is added is kept for the next time."""
        if self._sums[-1, column] >= amount:
            return
        with self._lock:
            added: list[Int64s] = []
            reached = int(self._sums[-1, column])
            while reached < amount:
                window = self._make_window(len(self._table) + len(added))
                added.append(self._row_figures(window).sum(axis=0))
                reached += int(added[-1][column])
            if added:
                self._table = np.concatenate((self._table, np.stack(added)))
                self._sum_up()
                self._keep_table()

    def _sum_up(self) -> None:
        zero = np.zeros((1, self._table.shape[1]), np.int64)
        self._sums = np.concatenate((zero, np.cumsum(self._table, axis=0)))

    def _read_table(self) -> Int64s:
        """The table as far as it was made before; a file that is not one is as good as none."""
        columns = len(fields(Figures))
        try:
            table: Int64s = np.load(self._kept, allow_pickle=False)
        except (OSError, ValueError, EOFError):
            return np.zeros((0, columns), np.int64)
        sound = table.dtype == np.int64 and table.ndim == 2 and table.shape[1] == columns
        return table if sound else np.zeros((0, columns), np.int64)

    def _keep_table(self) -> None:
        with cached_draft(self._kept) as file:
            np.save(file, self._table, allow_pickle=False)

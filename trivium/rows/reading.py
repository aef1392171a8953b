"""How one source is read under one setting: position -> window and row, without end.

A reading starts where the one before it stopped: first a window of the spans that were left over, then the
unread blocks of the epoch, then every epoch after it in a new order. Its windows are computed; what is kept
is a table with the rows and figures of each window, made in one pass over what a plan reaches and cached.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trivium.errors import SourceError
from trivium.files import cache_folder
from trivium.rows.blocks import Blocks, Spans
from trivium.rows.figures import CONSUMED, ROWS, Figures, row_figures, window_figures
from trivium.rows.order import ORDER_VERSION, Permutation
from trivium.rows.packing import Policy
from trivium.rows.window import Window, WindowCache, make_window
from trivium.rows.window_table import WindowTable
from trivium.seeds import derive_key

Int64s = NDArray[np.int64]
MOST_EPOCHS = 100_000  # of one reading: beyond it is a mistake, and would be planned without end
WINDOWS = WindowCache(64 << 20)  # of all readings of a process; a loader holds those it reads from besides


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
    key: str  # differs from the key of any other state
    leftover: Callable[[], Spans] | None = None  # found when it is needed, for it costs a window

    @classmethod
    def all_of(cls, blocks: Blocks, seed: int) -> "Unread":
        """Nothing has been read yet."""
        return cls(0, BlockOrder(epoch_order(blocks, seed, 0)), "start")


class Reading:
    """An endless sequence of rows of one source under one setting."""

    def __init__(self, blocks: Blocks, settings: RowSettings, unread: Unread, cache: Path | None = None) -> None:
        self.blocks = blocks
        self.settings = settings
        self.unread = unread
        self.order = unread.order.reordered(epoch_order(blocks, settings.seed, unread.epoch))
        identity = (ORDER_VERSION, blocks.fingerprint, blocks.name, unread.key, settings)
        self.key = blake2b(repr(identity).encode(), digest_size=16).hexdigest()
        self._table = WindowTable((cache or cache_folder()) / "readings" / self.key)
        self._lock = threading.RLock()

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
        """A window's rows; those in use are kept."""
        window = WINDOWS.get((self.key, number), lambda: self._make_window(number))
        known = number < self._table.num_windows
        assert not known or window.num_rows == self._table.rows_of(number), "the table is of this window"
        return window

    def _make_window(self, number: int) -> Window:
        epoch, index = self.place(number)
        settings, size = self.settings, self.blocks.window_blocks
        key = derive_key(settings.seed, "rows", self.blocks.name, epoch, index, settings.seq_len, settings.packing)
        if index < 0:
            assert self.unread.leftover is not None, "only what was left over has no place among the blocks"
            spans = self.unread.leftover()
        else:
            spans = self.blocks.spans(self.order_of(epoch).take(index * size, (index + 1) * size))
        return make_window(spans, settings.packing, settings.seq_len, key)

    def locate(self, position: int) -> tuple[int, int]:
        """The window of a position, and the row within it."""
        self._reach(ROWS, position + 1)
        return self._table.find(position)

    def rows_before(self, number: int) -> int:
        """Rows of all windows before one that was reached."""
        return int(self._table.sums[number, ROWS])

    def figures(self, start: int, stop: int) -> Figures:
        """What the rows from one position to another hold."""
        return Figures(*(self._figures_before(stop) - self._figures_before(start)).tolist())

    def _figures_before(self, position: int) -> Int64s:
        known = self._table.marked(position)
        if known is not None:
            return known
        number, row = self.locate(position - 1) if position else (-1, -1)
        sums: Int64s = self._table.sums[number + 1]
        if position and row + 1 < self._table.rows_of(number):
            rows = row_figures(self.window(number), self.blocks.table.loss)
            sums = self._table.sums[number] + rows[: row + 1].sum(axis=0)
            self._table.mark(position, sums)
        return sums

    def position_after(self, start: int, tokens: int) -> int:
        """The first position before which, from `start` on, `tokens` have been read or dropped."""
        wanted = tokens + int(self._figures_before(start)[CONSUMED])
        known = self._table.find_marked(wanted)
        if known is not None:
            return known
        self._reach(CONSUMED, wanted)
        number = int(np.searchsorted(self._table.sums[:, CONSUMED], wanted, side="left")) - 1
        if number < 0:
            return start
        sums = self._table.sums[number] + np.cumsum(row_figures(self.window(number), self.blocks.table.loss), axis=0)
        row = int(np.searchsorted(sums[:, CONSUMED], wanted, side="left"))
        position = self.rows_before(number) + row + 1
        self._table.mark(position - 1, sums[row - 1] if row else self._table.sums[number])
        self._table.mark(position, sums[row])
        return position

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
        if row + 1 < self._table.rows_of(number):
            return Unread(epoch, order, key, lambda: self.window(number).leftover(row + 1))
        if order.num_blocks:
            return Unread(epoch, order, key)
        return Unread(epoch + 1, self.order_of(epoch + 1), key)

    def _reach(self, column: int, amount: int) -> None:
        """Extend the table until its sum in a column is at least `amount`; the file keeps what is added."""
        with self._lock:
            reached = int(self._table.sums[-1, column])
            added: list[Int64s] = []
            while reached < amount:
                window = self._make_window(self._table.num_windows + len(added))
                added.append(window_figures(window, self.blocks.table.loss))
                reached += int(added[-1][column])
                if self.place(self._table.num_windows + len(added))[0] > self.unread.epoch + MOST_EPOCHS:
                    raise SourceError(
                        f"{self.blocks.name} would be read more than {MOST_EPOCHS:,} times. "
                        "Shorten the stages that read it, or lower its share."
                    )
            if added:
                self._table.extend(added)

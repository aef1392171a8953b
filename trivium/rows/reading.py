"""How one source is read under one setting: position -> window and row, without end.

A reading starts where the one before it stopped: first a window of the spans that were left over, then the
unread blocks of the epoch, then every epoch after it in a new order. Its windows are computed; what is kept
is a table with the rows and figures of each window, made in one pass over what a plan reaches and cached.
"""

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trivium.errors import SourceError
from trivium.files import cache_folder, keep_in_cache
from trivium.rows.blocks import Blocks, Spans
from trivium.rows.figures import CONSUMED, ROWS, Figures, row_figures, window_figures
from trivium.rows.order import ORDER_VERSION, Permutation
from trivium.rows.packing import Policy
from trivium.rows.window import Window, WindowCache, make_window
from trivium.rows.window_table import WindowTable
from trivium.screen import under_way
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


@dataclass(frozen=True, slots=True, eq=False)
class BlockOrder:
    """The blocks of one epoch that are unread, in the order in which they will be read."""

    permutation: Permutation
    first: int = 0  # of the permutation, where it is followed as it is
    chosen: Int64s | None = None  # the blocks themselves, where only some of the permutation are unread
    bands: Int64s | None = None  # of each of these the bands that are unread, as bits; absent: all

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

    def bands_of(self, start: int, stop: int) -> Int64s | None:
        """The unread bands of those blocks; None: all."""
        if self.bands is None:
            return None
        return self.bands[self.first + start : self.first + min(stop, self.num_blocks)]

    def after(self, count: int) -> "BlockOrder":
        """Without the first ones."""
        return BlockOrder(self.permutation, self.first + count, self.chosen, self.bands)

    def of_band(self, band: int) -> "BlockOrder":
        """Those blocks of which a band is unread."""
        if self.bands is None:
            return self
        assert self.chosen is not None, "blocks that differ in their bands are listed"
        unread = (self.bands[self.first :] >> band & 1).astype(np.bool_)
        return BlockOrder(self.permutation, 0, self.chosen[self.first :][unread])

    def reordered(self, permutation: Permutation) -> "BlockOrder":
        """The same blocks in another order; the same where it is the same order."""
        if permutation == self.permutation:
            return self
        if self.first == 0 and self.chosen is None:
            return BlockOrder(permutation)
        return BlockOrder(permutation, 0, merged_order({0: self}, permutation).chosen)


def merged_order(orders: Mapping[int, BlockOrder], permutation: Permutation) -> BlockOrder:
    """The unread blocks of several bands in one order."""
    unread = np.zeros(permutation.size, np.int64)
    for band, order in orders.items():
        unread[order.take(0, order.num_blocks)] |= 1 << band
    blocks = permutation.take(np.arange(permutation.size))
    chosen = blocks[unread[blocks] > 0]
    return BlockOrder(permutation, 0, chosen, unread[chosen])


def epoch_order(blocks: Blocks, seed: int, epoch: int) -> Permutation:
    """The order of all blocks in an epoch; keyed by names, so that other sources change nothing."""
    return Permutation(blocks.num_blocks, derive_key(seed, "order", blocks.name, epoch))


@dataclass(frozen=True, slots=True, eq=False)
class UnreadBand:
    """What of a band of a source is unread: blocks of this epoch, then all that follow."""

    epoch: int
    order: BlockOrder


@dataclass(frozen=True, slots=True)
class Unread:
    """What of some bands of a source is unread: spans left over, then the blocks of each band."""

    bands: Mapping[int, UnreadBand]
    key: str  # differs from the key of any other state
    leftover: Callable[[], Spans] | None = None  # found when it is needed, for it costs a window

    @classmethod
    def all_of(cls, blocks: Blocks, seed: int) -> "Unread":
        """Nothing has been read yet."""
        nothing = UnreadBand(0, BlockOrder(epoch_order(blocks, seed, 0)))
        return cls(dict.fromkeys(blocks.lengths.bands, nothing), "start")

    def only(self, bands: Collection[int], blocks: Blocks) -> "Unread":
        """Some of the bands."""
        if set(self.bands) <= set(bands):
            return self
        kept = {band: unread for band, unread in self.bands.items() if band in bands}
        if (leftover := self.leftover) is None:
            return Unread(kept, self.key)
        mask = sum(1 << band for band in kept)
        return Unread(kept, self.key, lambda: blocks.in_bands(leftover(), mask))

    @classmethod
    def joined(cls, parts: Sequence["Unread"]) -> "Unread":
        """Parts that have different bands, as one."""
        if len(parts) == 1:
            return parts[0]
        bands = {band: unread for part in parts for band, unread in part.bands.items()}
        leftovers = [part.leftover for part in parts if part.leftover is not None]
        key = " and ".join(f"bands {sorted(part.bands)} of {part.key}" for part in parts)
        if not leftovers:
            return cls(bands, key)
        return cls(bands, key, lambda: Spans(np.concatenate([leftover().pieces for leftover in leftovers])))


class Reading:
    """An endless sequence of rows of one source under one setting."""

    def __init__(self, blocks: Blocks, settings: RowSettings, unread: Unread, cache: Path | None = None) -> None:
        self.blocks = blocks
        self.settings = settings
        self.unread = unread
        epochs = [band.epoch for band in unread.bands.values()]
        self.first_epoch = min(epochs)
        # The epochs of which something has been read; every later one is read whole.
        self._begun = [self._begun_order(epoch) for epoch in range(self.first_epoch, max(epochs) + 1)]
        identity = (ORDER_VERSION, blocks.fingerprint, blocks.name, unread.key, settings)
        self.key = blake2b(repr(identity).encode(), digest_size=16).hexdigest()
        self._table = WindowTable(_table_path(cache or cache_folder(), self.key))
        self._lock = threading.RLock()

    def _begun_order(self, epoch: int) -> BlockOrder:
        """The unread blocks of an epoch: of a band that is behind all, of one that is ahead none."""
        permutation = epoch_order(self.blocks, self.settings.seed, epoch)
        bands = {band: unread for band, unread in self.unread.bands.items() if unread.epoch <= epoch}
        first = next(iter(bands.values()))
        if len(bands) == len(self.unread.bands) and all(each is first for each in bands.values()):
            return first.order.reordered(permutation) if first.epoch == epoch else BlockOrder(permutation)
        orders = {
            band: unread.order if unread.epoch == epoch else BlockOrder(permutation) for band, unread in bands.items()
        }
        return merged_order(orders, permutation)

    def table_content(self) -> bytes:
        """The table of windows, for `keep_table` on another machine."""
        return self._table.content()

    def place(self, number: int) -> tuple[int, int]:
        """A window's epoch and its number within it; -1 is the window of what was left over."""
        number -= self.unread.leftover is not None
        if number < 0:
            return self.first_epoch, -1
        size = self.blocks.window_blocks
        for epoch, order in enumerate(self._begun, self.first_epoch):
            here = -(-order.num_blocks // size)
            if number < here:
                return epoch, number
            number -= here
        epochs, index = divmod(number, -(-self.blocks.num_blocks // size))
        return self.first_epoch + len(self._begun) + epochs, index

    def order_of(self, epoch: int) -> BlockOrder:
        """The order of an epoch's blocks."""
        if epoch - self.first_epoch < len(self._begun):
            return self._begun[epoch - self.first_epoch]
        return BlockOrder(epoch_order(self.blocks, self.settings.seed, epoch))

    def window(self, number: int) -> Window:
        """A window's rows; those in use are kept."""
        window = WINDOWS.get((self.key, number), lambda: self._make_window(number))
        self.blocks.open_files(window.pieces)
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
            order, stretch = self.order_of(epoch), (index * size, (index + 1) * size)
            spans = self.blocks.spans(order.take(*stretch), order.bands_of(*stretch))
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
            return Unread(self._unread_bands(epoch, order), key, lambda: self.window(number).leftover(row + 1))
        if not order.num_blocks:
            epoch, order = epoch + 1, self.order_of(epoch + 1)
        return Unread(self._unread_bands(epoch, order), key)

    def _unread_bands(self, epoch: int, order: BlockOrder) -> dict[int, UnreadBand]:
        """Every band once this reading has come to the rest of an epoch; one that was ahead of it may still be."""
        here = UnreadBand(epoch, order)
        return {
            band: unread
            if unread.epoch > epoch
            else here
            if order.bands is None
            else UnreadBand(epoch, order.of_band(band))
            for band, unread in self.unread.bands.items()
        }

    def _reach(self, column: int, amount: int) -> None:
        """Extend the table until its sum in a column is at least `amount`; the file keeps what is added."""
        with self._lock:
            if int(self._table.sums[-1, column]) < amount:
                with under_way(f"packing rows of {self.blocks.name}") as done:
                    self._table.extend(self._reached(column, amount, done))

    def _reached(self, column: int, amount: int, done: Callable[[float], None]) -> list[Int64s]:
        """The figures of the windows that the table lacks; `done` is told how far they reach."""
        first = reached = int(self._table.sums[-1, column])
        added: list[Int64s] = []
        while reached < amount:
            window = self._make_window(self._table.num_windows + len(added))
            added.append(window_figures(window, self.blocks.table.loss))
            reached += int(added[-1][column])
            done((reached - first) / (amount - first))
            if self.place(self._table.num_windows + len(added))[0] > self.first_epoch + MOST_EPOCHS:
                raise SourceError(
                    f"{self.blocks.name} would be read more than {MOST_EPOCHS:,} times. "
                    "Shorten the stages that read it, or lower its share."
                )
        return added


def keep_table(cache: Path, key: str, content: bytes) -> None:
    """Keep the table of a reading that was made elsewhere, where the cache folder has none of that content."""
    path = _table_path(cache, key)
    if not path.is_file() or path.read_bytes() != content:
        keep_in_cache(path, content, durable=False)


def _table_path(cache: Path, key: str) -> Path:
    return cache / "readings" / key

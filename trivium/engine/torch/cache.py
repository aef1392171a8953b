"""Keys and values of rows that grow -> what their next tokens gather.

    slot      0 1 2 3 4 5
    row 0     a b c d e f       six tokens so far
    row 1     . . . x y z       three: the slots before its first are masked

All rows end at the same slot, so that a pass writes one slot of every row, with one copy a layer; rotary positions are
in the keys already, and are the row's own. A query's group of heads asks its keys as if it were several slots of one
head: nothing is repeated. Room is taken as it is needed, half as much again each time.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from trivium.engine.torch.attention import Documents, Layout, WholeRows

FIRST_ROOM = 64  # slots beyond the prompts'


class Cache:
    """Keys and values of every layer: (rows, kv_heads, slots, head_dim) each, of which `filled` slots count."""

    def __init__(self, lengths: Sequence[int], room: int) -> None:
        self.filled = max(lengths, default=1)
        self.limit = self.filled + room
        self.slots = min(self.limit, self.filled + FIRST_ROOM)
        self.first = np.array([self.filled - length for length in lengths], np.int64)  # slot of a row's first token
        self.layers: list[tuple[Tensor, Tensor]] = []
        self._mask: Tensor | None = None

    def prefill(self) -> Layout:
        """For the pass over all prompts: rows where they are of one length, else all of them end to end in one row."""
        return _Prefill(self)

    def take(self, keys: Tensor, values: Tensor) -> None:
        """One layer's keys and values of the prompts, as the prefill has them."""
        rows = len(self.first)
        shape = (rows, keys.shape[2], self.slots, keys.shape[3])
        room = keys.new_zeros(shape), keys.new_zeros(shape)
        for kept, given in zip(room, (keys, values), strict=True):
            if len(given) == rows:
                kept[:, :, : self.filled] = given.transpose(1, 2)
                continue
            pieces = torch.split(given[0], [self.filled - first for first in self.first.tolist()])
            for row, (first, piece) in enumerate(zip(self.first.tolist(), pieces, strict=True)):
                kept[row, :, first : self.filled] = piece.transpose(0, 1)
        self.layers.append(room)

    def next_slot(self) -> Layout:
        """For a pass over one more token of each row; the slot is filled from now on."""
        assert self.filled < self.limit, "more tokens than room was asked for"
        if self.filled == self.slots:
            self._make_room(min(self.limit, self.slots + self.slots // 2 + 1))
        self.filled += 1
        mask = None if self._mask is None else self._mask[..., : self.filled]
        return _NextSlot(iter(self.layers), self.filled, mask)

    def select(self, rows: NDArray[np.int64]) -> None:
        """Go on with these rows; slots that only others have used stay masked."""
        self.first = self.first[rows]
        if self.layers:
            chosen = torch.tensor(rows, device=self.layers[0][0].device)
            self.layers = [(keys[chosen], values[chosen]) for keys, values in self.layers]
        self.mask()

    def mask(self) -> None:
        """Hide what lies before each row's first token; nothing where all begin at slot 0."""
        self._mask = None
        if self.first.any():
            keys, _ = self.layers[0]
            hidden = np.arange(self.slots) < self.first[:, None]
            mask = np.where(hidden, -np.inf, 0.0)[:, None, None]
            self._mask = torch.tensor(mask, dtype=keys.dtype, device=keys.device)

    def _make_room(self, slots: int) -> None:
        self.slots = slots
        for number, layer in enumerate(self.layers):
            wider = tuple(part.new_zeros(*part.shape[:2], slots, part.shape[3]) for part in layer)
            for new, old in zip(wider, layer, strict=True):
                new[:, :, : self.filled] = old[:, :, : self.filled]
            self.layers[number] = (wider[0], wider[1])
        self.mask()

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each row so far."""
        return self.filled - self.first


@dataclass(frozen=True, slots=True)
class _Prefill:
    """Prompts see themselves; what the layers ask with is kept, one after the other."""

    cache: Cache

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """One causal call where all prompts have one length, one for each prompt where not."""
        self.cache.take(keys, values)
        lengths = tuple(self.cache.lengths.tolist())
        is_whole = len(queries) == len(lengths)
        inner: Layout = WholeRows() if is_whole else Documents(lengths, (False,) * len(lengths))
        return inner.attend(queries, keys, values)


@dataclass(frozen=True, slots=True)
class _NextSlot:
    """One more token a row, which sees all of its row; for one pass, whose layers come one after the other."""

    layers: Iterator[tuple[Tensor, Tensor]]
    filled: int
    mask: Tensor | None

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Fill the layer's last slot, then ask all slots."""
        kept_keys, kept_values = next(self.layers)
        kept_keys[:, :, self.filled - 1] = keys[:, 0]
        kept_values[:, :, self.filled - 1] = values[:, 0]
        rows, _, kv_heads, head_dim = keys.shape
        grouped = queries.view(rows, kv_heads, queries.shape[2] // kv_heads, head_dim)
        gathered = scaled_dot_product_attention(
            grouped, kept_keys[:, :, : self.filled], kept_values[:, :, : self.filled], attn_mask=self.mask
        )
        return gathered.reshape(queries.shape)

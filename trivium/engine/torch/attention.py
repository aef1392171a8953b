"""Queries, keys and values -> what every slot has gathered from its document, or from its row.

A layout is made once for each micro-batch from the rows' segments and then used by every layer. All of them
give the same result; they differ in their price, forward and backward, against plain causal attention = 1:

    WholeRows    1 for rows that are one document, and for documents that are joined
    Documents    a causal call for every document; for CPUs. Mean length 8: 0.5 at 8 x 512 and 0.3 at 2 x 2048;
                 128: 0.6 and 0.3; 512: 0.9 and 0.5
    Masked       an explicit mask: 1.0 at 8 x 512 and 1.8 at 2 x 2048
    BlockMasked  flex attention, which skips what a mask hides; for GPUs, where it is compiled

Padding gathers nothing and gives nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention
from torch.nn.functional import scaled_dot_product_attention

from trivium.rows.batch import PADDING

Segments = NDArray[np.int32]
BLOCK = 128  # slots on a side of flex attention's blocks


class Layout(Protocol):
    """Which slots see which; queries (B, T, heads, head_dim), keys and values (B, T, kv_heads, head_dim)."""

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Softmax-weighted values, in the queries' shape."""


def layout_of(segments: Segments, document_mask: bool, device: torch.device) -> Layout | None:
    """The cheapest layout that keeps documents apart, or joins them; None where `masked` makes it on the device."""
    _refuse_padding_inside(segments)
    is_first = segments == segments[:, :1]
    if not document_mask or is_first.all():
        return WholeRows()
    if device.type == "cpu":
        return Documents.of(segments)
    return WholeRows() if (is_first | (segments == PADDING)).all() else None


def masked(starts: Tensor) -> Layout:
    """The layout of rows by the starts of their slots' documents (B, T), on the device that these are on."""
    return BlockMasked(block_mask(starts)) if starts.is_cuda else Masked.of(starts)


def _refuse_padding_inside(segments: Segments) -> None:
    """A slot after padding would see it under a causal mask."""
    padding = segments == PADDING
    assert not (padding[:, :-1] & ~padding[:, 1:]).any(), "padding comes last in a row"


@dataclass(frozen=True, slots=True)
class WholeRows:
    """Every slot sees its row up to itself; padding comes last, so nothing sees it."""

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        return _causal(queries, keys, values)


@dataclass(frozen=True, slots=True)
class Documents:
    """Every document by itself: spans over all rows' slots, end to end."""

    lengths: tuple[int, ...]
    is_padding: tuple[bool, ...]

    @classmethod
    def of(cls, segments: Segments) -> "Documents":
        """Spans where the row or the segment changes."""
        starts_here = np.ones(segments.shape, dtype=bool)
        starts_here[:, 1:] = segments[:, 1:] != segments[:, :-1]
        starts = np.flatnonzero(starts_here)
        lengths = np.diff(starts, append=segments.size)
        return cls(tuple(lengths.tolist()), tuple((segments.reshape(-1)[starts] == PADDING).tolist()))

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def attend(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """One causal call a document; split and cat, because a slice's backward would fill whole arrays."""
        in_pieces = (torch.split(array.flatten(0, 1), list(self.lengths)) for array in (queries, keys, values))
        gathered = [
            torch.zeros_like(query) if padding else _causal(query[None], key[None], value[None])[0]
            for query, key, value, padding in zip(*in_pieces, self.is_padding, strict=True)
        ]
        return torch.cat(gathered).view_as(queries)


@dataclass(frozen=True, slots=True)
class Masked:
    """An explicit mask: the plainest way, and the one that the others are held to."""

    mask: Tensor  # (B, 1, T, T), True where a query sees a key

    @classmethod
    def of(cls, starts: Tensor) -> "Masked":
        """Of the same document, and not later; padding sees itself, so that no softmax is empty."""
        same = starts[:, :, None] == starts[:, None, :]
        return cls(same.tril()[:, None])

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        q, k, v = _heads_first(queries, keys, values)
        return scaled_dot_product_attention(q, k, v, attn_mask=self.mask, enable_gqa=True).transpose(1, 2)


@dataclass(frozen=True, slots=True)
class BlockMasked:
    """The same mask by blocks of 128 x 128, of which those that are empty cost nothing."""

    blocks: BlockMask

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """One call; compiled on a GPU, where the plain form would hold the whole square."""
        q, k, v = _heads_first(queries, keys, values)
        return _flex_attention(q.is_cuda)(q, k, v, block_mask=self.blocks, enable_gqa=True).transpose(1, 2)


def document_starts(segments: Segments) -> Segments:
    """For every slot, the slot at which its document begins."""
    begins = np.zeros(segments.shape, np.int32)
    begins[:, 1:] = np.where(segments[:, 1:] != segments[:, :-1], np.arange(1, segments.shape[1]), 0)
    starts: Segments = np.maximum.accumulate(begins, axis=1)
    return starts


def block_mask(starts: Tensor, offset: int = 0, num_queries: int | None = None) -> BlockMask:
    """The mask of rows by the starts of their slots' documents (B, T); queries are all slots, or some from an offset.

    torch's own `create_block_mask` evaluates every pair of slots, 51 GB at 131,072 of them. Starts only grow along a
    row, so that the blocks of keys which a block of queries sees are neighbours: from its first slot's document to its
    last slot. So are those that it sees whole, from its last slot's document to its first slot, and so are the blocks
    of queries that see a block of keys.
    """
    seq_len = starts.shape[1]
    num_queries = seq_len - offset if num_queries is None else num_queries
    of_queries, of_keys = (
        torch.arange(-(-slots // BLOCK), dtype=torch.int32, device=starts.device).repeat(len(starts), 1)
        for slots in (num_queries, seq_len)
    )
    first = offset + of_queries * BLOCK
    last = (first + BLOCK - 1).clamp(max=offset + num_queries - 1)
    begins, ends = (starts.gather(1, slots.long()) for slots in (first, last))  # of the first's and the last's document
    seen = _Spans(begins // BLOCK, last // BLOCK + 1)
    is_short = first + BLOCK - 1 > last
    whole = _Spans(torch.where(is_short, of_keys.shape[1], -(-ends // BLOCK)), (first + 1) // BLOCK)

    def sees(row: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (query + offset >= key) & (key >= starts[row, query + offset])

    return BlockMask(
        (num_queries, seq_len),
        *_listed(seen, whole, of_keys[0]),
        *_listed(seen.seen_from(of_keys), whole.seen_from(of_keys), of_queries[0]),
        BLOCK_SIZE=(BLOCK, BLOCK),
        mask_mod=sees,
    )


@dataclass(frozen=True, slots=True)
class _Spans:
    """For each block on one side, a span of blocks on the other, (B, blocks); from block to block no end goes back."""

    first: Tensor
    end: Tensor  # where a span is empty, at or before its first

    def seen_from(self, others: Tensor) -> "_Spans":
        """For each block on the other side (B, others), the span of blocks whose own spans hold it."""
        sides = (torch.searchsorted(each, others, right=True, out_int32=True) for each in (self.end, self.first))
        return _Spans(*sides)


def _listed(seen: _Spans, whole: _Spans, others: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """As torch wants them: numbers and indices of the blocks that are seen in part, and of those that are seen whole.

    Indices after the number of a list are never read, and mean nothing.
    """
    num_whole = (whole.end - whole.first).clamp(min=0)
    num_before = torch.where(
        num_whole > 0, whole.first - seen.first, len(others)
    )  # seen in part, before the whole ones
    after = seen.first + num_whole
    in_part = torch.where(others < num_before[..., None], seen.first[..., None], after[..., None]).add_(others)
    in_whole = whole.first[..., None] + others
    numbers = (seen.end - after)[:, None], num_whole[:, None]
    indices = [each.clamp_(max=len(others) - 1)[:, None] for each in (in_part, in_whole)]
    return numbers[0], indices[0], numbers[1], indices[1]


def _causal(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    q, k, v = _heads_first(queries, keys, values)
    return scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).transpose(1, 2)


def _heads_first(queries: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """As torch wants them: (B, heads, T, head_dim), without a copy."""
    return queries.transpose(1, 2), keys.transpose(1, 2), values.transpose(1, 2)


@cache
def _flex_attention(compiled: bool) -> Callable[..., Tensor]:
    call: Any = flex_attention
    return torch.compile(call, dynamic=False) if compiled else call

"""Queries, keys and values -> what every slot has gathered from its document, or from its row.

A layout is made once for each micro-batch from the rows' segments and then used by every layer. All of them
give the same result; they differ in their price, forward and backward, against plain causal attention = 1:

    WholeRows    1 for rows that are one document, and for documents that are joined
    Documents    a causal call for every document; for CPUs. Mean length 8: 0.5 at 8 x 512 and 0.3 at 2 x 2048;
                 128: 0.6 and 0.3; 512: 0.9 and 0.5
    Masked       an explicit mask: 1.0 at 8 x 512 and 1.8 at 2 x 2048
    BlockMasked  flex attention, which skips what a mask hides; for GPUs, where it is compiled

Layers may differ in how they see (`AttentionSpec`): within a window, by another scale, with capped scores. On CPUs a
window or a cap makes spans of `span_attention`, which has their price; elsewhere there is a mask for each window, which
is made once for a micro-batch (`ByWindow`). Padding gathers nothing and gives nothing.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention
from torch.nn.functional import scaled_dot_product_attention

from trivium.engine.torch.span_attention import Span, attend_spans, explicit
from trivium.model.spec import AttentionSpec
from trivium.rows.batch import PADDING

Segments = NDArray[np.int32]
BLOCK = 128  # slots on a side of flex attention's blocks
PLAIN = AttentionSpec()


class Layout(Protocol):
    """Which slots see which; queries (B, T, heads, head_dim), keys and values (B, T, kv_heads, head_dim)."""

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, how: AttentionSpec = PLAIN) -> Tensor:
        """Softmax-weighted values, in the queries' shape."""


def layout_of(
    segments: Segments, document_mask: bool, device: torch.device, kinds: Sequence[AttentionSpec] = (PLAIN,)
) -> Layout | None:
    """The cheapest layout that keeps documents apart, or joins them; None where `masked` makes it on the device.

    `kinds` are the ways in which the model's layers see.
    """
    _refuse_padding_inside(segments)
    is_first = segments == segments[:, :1]
    is_whole = not document_mask or bool(is_first.all())
    if device.type == "cpu":
        return WholeRows() if is_whole else Documents.of(segments)
    is_whole = is_whole or bool((is_first | (segments == PADDING)).all())
    return WholeRows() if is_whole and all(is_causal(kind, segments.shape[1]) for kind in kinds) else None


def is_causal(how: AttentionSpec, slots: int) -> bool:
    """Whether plain causal attention gives what is asked for in this many slots: nothing is hidden, nothing capped."""
    return how.softcap is None and (how.window is None or how.window >= slots)


def masked(starts: Tensor, kinds: Sequence[AttentionSpec] = (PLAIN,)) -> Layout:
    """The layout of rows by the starts of their slots' documents (B, T), on the device that these are on."""
    if starts.is_cuda:
        return by_window(kinds, lambda window: BlockMasked(block_mask(within(starts, window)), window))
    return by_window(kinds, lambda window: Masked.of(starts, window))


def by_window(kinds: Sequence[AttentionSpec], make: Callable[[int | None], Layout]) -> Layout:
    """A layout for each window that layers have, made once."""
    each = {window: make(window) for window in {kind.window for kind in kinds}}
    return next(iter(each.values())) if len(each) == 1 else ByWindow(each)


def within(starts: Tensor, window: int | None) -> Tensor:
    """For every slot of rows (B, T) the first that it sees, of its document and within a window."""
    if window is None:
        return starts
    slots = torch.arange(starts.shape[1], dtype=starts.dtype, device=starts.device)
    return torch.maximum(starts, slots - window + 1)


def _refuse_padding_inside(segments: Segments) -> None:
    """A slot after padding would see it under a causal mask."""
    padding = segments == PADDING
    assert not (padding[:, :-1] & ~padding[:, 1:]).any(), "padding comes last in a row"


@dataclass(frozen=True, slots=True)
class WholeRows:
    """Every slot sees its row up to itself; padding comes last, so nothing sees it."""

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, how: AttentionSpec = PLAIN) -> Tensor:
        slots = queries.shape[1]
        if is_causal(how, slots):
            return _causal(queries, keys, values, how.scale)
        assert queries.device.type == "cpu", "other devices have masks"
        return attend_spans(queries, keys, values, [Span(slice(None), 0, 0, slots, 0)], how)


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
    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, how: AttentionSpec = PLAIN) -> Tensor:
        """One causal call a document; split and cat, because a slice's backward would fill whole arrays."""
        if not is_causal(how, max(self.lengths)):
            return self._by_spans(queries, keys, values, how)
        in_pieces = (torch.split(array.flatten(0, 1), list(self.lengths)) for array in (queries, keys, values))
        gathered = [
            torch.zeros_like(query) if padding else _causal(query[None], key[None], value[None], how.scale)[0]
            for query, key, value, padding in zip(*in_pieces, self.is_padding, strict=True)
        ]
        return torch.cat(gathered).view_as(queries)

    def _by_spans(self, queries: Tensor, keys: Tensor, values: Tensor, how: AttentionSpec) -> Tensor:
        """All rows as one, end to end."""
        starts = np.cumsum((0, *self.lengths[:-1])).tolist()
        facts = zip(starts, self.lengths, self.is_padding, strict=True)
        spans = [Span(slice(0, 1), start, start, length, start) for start, length, padding in facts if not padding]
        query, key, value = (array.flatten(0, 1)[None] for array in (queries, keys, values))
        return attend_spans(query, key, value, spans, how).view_as(queries)


@dataclass(frozen=True, slots=True)
class Masked:
    """An explicit mask: the plainest way, and the one that the others are held to."""

    mask: Tensor  # (B, 1, T, T), True where a query sees a key
    window: int | None = None  # that is in the mask

    @classmethod
    def of(cls, starts: Tensor, window: int | None = None) -> "Masked":
        """Of the same document, near enough and not later; padding sees itself, so that no softmax is empty."""
        slots = torch.arange(starts.shape[1], device=starts.device)
        sees = (slots >= within(starts, window)[:, :, None]) & (slots <= slots[:, None])
        return cls(sees[:, None], window)

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, how: AttentionSpec = PLAIN) -> Tensor:
        assert how.window == self.window, "a mask has one window"
        q, k, v = _heads_first(queries, keys, values)
        if how.softcap is not None:
            return explicit(q, k, v, self.mask, how).transpose(1, 2)
        found = scaled_dot_product_attention(q, k, v, attn_mask=self.mask, scale=how.scale, enable_gqa=True)
        return found.transpose(1, 2)


@dataclass(frozen=True, slots=True)
class BlockMasked:
    """The same mask by blocks of 128 x 128, of which those that are empty cost nothing."""

    blocks: BlockMask
    window: int | None = None  # that is in the mask

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, how: AttentionSpec = PLAIN) -> Tensor:
        """One call; compiled on a GPU, where the plain form would hold the whole square."""
        assert how.window == self.window, "a mask has one window"
        q, k, v = _heads_first(queries, keys, values)
        call = _flex_attention(q.is_cuda)
        capped = None if how.softcap is None else _capped(how.softcap)
        found = call(q, k, v, score_mod=capped, block_mask=self.blocks, scale=how.scale, enable_gqa=True)
        return found.transpose(1, 2)


@dataclass(frozen=True, slots=True)
class ByWindow:
    """Layers that see within windows, and layers that do not: a layout for each window."""

    each: Mapping[int | None, Layout]

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, how: AttentionSpec = PLAIN) -> Tensor:
        return self.each[how.window].attend(queries, keys, values, how)


def document_starts(segments: Segments) -> Segments:
    """For every slot, the slot at which its document begins."""
    begins = np.zeros(segments.shape, np.int32)
    begins[:, 1:] = np.where(segments[:, 1:] != segments[:, :-1], np.arange(1, segments.shape[1]), 0)
    starts: Segments = np.maximum.accumulate(begins, axis=1)
    return starts


def block_mask(starts: Tensor, offset: int = 0, num_queries: int | None = None) -> BlockMask:
    """The mask of rows by the first slot that each slot sees (B, T); queries are all slots, or some from an offset.

    torch's own `create_block_mask` evaluates every pair of slots, 51 GB at 131,072 of them. Starts, of documents or of
    windows, only grow along a row, so that the blocks of keys which a block of queries sees are neighbours: from its
    first slot's start to its last slot. So are those that it sees whole, from its last slot's start to its first slot,
    and so are the blocks of queries that see a block of keys.
    """
    seq_len = starts.shape[1]
    num_queries = seq_len - offset if num_queries is None else num_queries
    of_queries, of_keys = (
        torch.arange(-(-slots // BLOCK), dtype=torch.int32, device=starts.device).repeat(len(starts), 1)
        for slots in (num_queries, seq_len)
    )
    first = offset + of_queries * BLOCK
    last = (first + BLOCK - 1).clamp(max=offset + num_queries - 1)
    begins, ends = (
        starts.gather(1, slots.long()) for slots in (first, last)
    )  # of the first one's slots, and of the last one's
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


def _causal(queries: Tensor, keys: Tensor, values: Tensor, scale: float | None) -> Tensor:
    q, k, v = _heads_first(queries, keys, values)
    return scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=True).transpose(1, 2)


def _heads_first(queries: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """As torch wants them: (B, heads, T, head_dim), without a copy."""
    return queries.transpose(1, 2), keys.transpose(1, 2), values.transpose(1, 2)


@cache
def _capped(softcap: float) -> Callable[..., Tensor]:
    """One function for each cap, so that flex attention is compiled once for it."""

    def capped(score: Tensor, _row: Tensor, _head: Tensor, _query: Tensor, _key: Tensor) -> Tensor:
        return softcap * torch.tanh(score / softcap)

    return capped


@cache
def _flex_attention(compiled: bool) -> Callable[..., Tensor]:
    call: Any = flex_attention
    return torch.compile(call, dynamic=False) if compiled else call

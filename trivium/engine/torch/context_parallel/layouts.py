"""Whole rows' segments -> how a rank attends from its slots of them.

    gather     every rank gets the keys and values of whole rows, and asks them with the queries of its own slots
    ulysses    every rank gets whole rows of its part of the heads, attends as one that has rows whole, and sends back

Where no document of a micro-batch has slots of two ranks nothing is sent. All ranks of a group see the same segments,
so that they agree on it without asking.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trivium.engine.torch.attention import (
    PLAIN,
    BlockMasked,
    Layout,
    Segments,
    block_mask,
    by_window,
    document_starts,
    layout_of,
    masked,
    within,
)
from trivium.engine.torch.context_parallel.axis import ContextAxis
from trivium.engine.torch.context_parallel.slots import SlotShare
from trivium.engine.torch.context_parallel.spans import Spans
from trivium.model.spec import AttentionSpec
from trivium.rows.batch import PADDING

Kinds = Sequence[AttentionSpec]  # in which the model's layers see


@dataclass(frozen=True, slots=True)
class FromStarts:
    """A layout that is made on the device, of the starts of slots' documents there."""

    starts: Segments
    make: Callable[[Tensor], Layout]


def row_layout(segments: Segments, document_mask: bool, device: torch.device, kinds: Kinds) -> Layout | FromStarts:
    """How whole rows are attended."""
    found = layout_of(segments, document_mask, device, kinds)
    return found or FromStarts(document_starts(segments), lambda starts: masked(starts, kinds))


def shared_layout(
    axis: ContextAxis, segments: Segments, document_mask: bool, device: torch.device, kinds: Kinds = (PLAIN,)
) -> Layout | FromStarts:
    """How a rank attends from its slots of rows with these segments; those of joined documents are one."""
    if axis.size == 1:
        return row_layout(segments, document_mask, device, kinds)
    share = axis.share(segments.shape[1])
    if not share.crosses(segments):
        return row_layout(share.of(segments, PADDING), document_mask, device, kinds)
    whole = share.padded(segments)
    if axis.method == "ulysses":
        return _wrapped(row_layout(whole, document_mask, device, kinds), lambda inner: ByHeads(axis, inner))
    return _wrapped(stretch_layout(whole, share, device, kinds), lambda inner: GatheredKeys(axis, inner))


def stretch_layout(
    segments: Segments, share: SlotShare, device: torch.device, kinds: Kinds = (PLAIN,)
) -> Layout | FromStarts:
    """How queries of a rank's slots ask the keys of whole rows with these segments."""
    if device.type == "cpu":
        return Spans.of(segments, share)
    starts = document_starts(segments)
    return FromStarts(starts, lambda there: by_window(kinds, lambda window: Stretches.of(there, share, window)))


def _wrapped(inner: Layout | FromStarts, wrap: Callable[[Layout], Layout]) -> Layout | FromStarts:
    if isinstance(inner, FromStarts):
        make = inner.make
        return FromStarts(inner.starts, lambda starts: wrap(make(starts)))
    return wrap(inner)


@dataclass(frozen=True, slots=True)
class GatheredKeys:
    """Keys and values come from all ranks; queries stay where they are."""

    axis: ContextAxis
    inner: Layout  # of queries of some slots and keys of all

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, how: AttentionSpec = PLAIN) -> Tensor:
        whole_keys, whole_values = self.axis.gather(torch.stack((keys, values))).unbind(0)
        return self.inner.attend(queries, whole_keys, whole_values, how)


@dataclass(frozen=True, slots=True)
class ByHeads:
    """A rank attends whole rows with its part of the heads."""

    axis: ContextAxis
    inner: Layout

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, how: AttentionSpec = PLAIN) -> Tensor:
        return self.axis.from_heads(self.inner.attend(*self.axis.to_heads(queries, keys, values), how))


@dataclass(frozen=True, slots=True)
class Stretches:
    """Queries of two stretches, each by a mask of its own; for GPUs."""

    each: tuple[BlockMasked, BlockMasked]

    @classmethod
    def of(cls, starts: Tensor, share: SlotShare, window: int | None = None) -> "Stretches":
        """Of the starts of all slots' documents (B, T)."""
        seen = within(starts, window)
        first, last = (BlockMasked(block_mask(seen, begin, share.stretch), window) for begin in share.firsts)
        return cls((first, last))

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, how: AttentionSpec = PLAIN) -> Tensor:
        """Queries of the rank's slots, keys and values of whole rows."""
        parts = zip(self.each, queries.chunk(2, 1), strict=True)
        return torch.cat([mask.attend(part, keys, values, how) for mask, part in parts], 1)

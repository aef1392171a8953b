"""Spans of slots, with their windows and caps -> what the slots gather; on CPUs, without a mask or a square.

A span is some neighbouring slots of a document. They see the document's slots before the span, all of them, and
the span's own, causally. Under a window a span is cut where a whole number of windows of its document ends, and a
piece sees three parts at most, of 16 slots with a window of 4 say, which are cut into four:

    slots     8 9 10 11             queries of the third piece
    causal    8 9 10 11             the piece itself
    mirrored  5 6 7                 8 sees all three, 9 two of them, 10 one: causal from the other end

and, where a rank's stretch ends a piece early, the slots that all of it still sees. Each part is one call of torch's
kernel; their results are joined by the sums of their softmaxes. The gradients of the parts are those of the joined
result, which the kernel's backward pass takes in place of each one's own. Against an explicit mask, forward and
backward: 0.8 of the time. A window of W in a row of T slots costs as many scores as T x W, where the whole row has
T x T / 2.

Scores that are capped have no kernel on CPUs: a piece's are computed as they are written, one piece at a time, forward
and again backward. The memory is heads x slots x slots of the largest piece, which without a window is a document.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from trivium.model.spec import AttentionSpec

flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


class Part(NamedTuple):
    """Some of a piece's queries, which are its first ones, and keys of theirs."""

    num_queries: int
    keys: slice
    causal: bool = False
    mirrored: bool = False  # the last query sees the last key, the one before it the last two


@dataclass(frozen=True, slots=True)
class Span:
    """Neighbouring slots of one document, in rows that have the same."""

    rows: slice
    own: int  # the first one's place among the queries
    slot: int  # and among the keys
    length: int
    document: int  # the slot at which the document begins

    @property
    def queries(self) -> slice:
        return slice(self.own, self.own + self.length)

    def pieces(self, window: int | None) -> Iterator["Span"]:
        """The span, cut where a whole number of windows of its document ends."""
        if window is None:
            yield self
            return
        begin, end = self.slot, self.slot + self.length
        while begin < end:
            stop = min(end, begin + window - (begin - self.document) % window)
            yield replace(self, own=self.own + begin - self.slot, slot=begin, length=stop - begin)
            begin = stop

    def seen(self, window: int | None) -> Iterator[Part]:
        """What a piece sees: itself first, then what is before it."""
        begin, end = self.slot, self.slot + self.length
        yield Part(self.length, slice(begin, end), causal=True)
        first = self.document if window is None else max(self.document, end - window)  # seen by the last one
        if first < begin:
            yield Part(self.length, slice(first, begin))
        if window is not None and begin - self.document >= window and self.length > 1:
            yield Part(self.length - 1, slice(begin - window + 1, end - window), mirrored=True)

    def nearest(self, window: int | None) -> slice:
        """All keys that a piece sees."""
        first = self.document if window is None else max(self.document, self.slot - window + 1)
        return slice(first, self.slot + self.length)


def attend_spans(queries: Tensor, keys: Tensor, values: Tensor, spans: Sequence[Span], how: AttentionSpec) -> Tensor:
    """What the spans' slots gather, and zeros for all others."""
    pieces = tuple(piece for span in spans for piece in span.pieces(how.window))
    gathered: Tensor = _attend(queries, keys, values, pieces, how)
    return gathered


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _attend(queries: Tensor, keys: Tensor, values: Tensor, pieces: tuple[Span, ...], how: AttentionSpec) -> Any:
    function = _SpanAttention if how.softcap is None else _CappedAttention
    return function.apply(queries, keys, values, pieces, how)  # type: ignore[no-untyped-call]


class _SpanAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, queries: Tensor, keys: Tensor, values: Tensor, pieces: tuple[Span, ...], how: AttentionSpec
    ) -> Tensor:
        gathered = torch.zeros_like(queries)
        log_sums = queries.new_empty(queries.shape[:-1], dtype=torch.float32)
        for piece in pieces:
            own, result = (_heads(each, piece.rows, piece.queries) for each in (queries, gathered))
            log_sum = log_sums[piece.rows, piece.queries].transpose(1, 2)
            for part in piece.seen(how.window):
                found, found_sum = _part(own, keys, values, piece, part, how)
                if part.causal:  # the first one
                    result.copy_(found)
                    log_sum.copy_(found_sum)
                    continue
                joined = torch.logaddexp(found_sum, log_sum[..., : part.num_queries])
                share = (found_sum - joined).exp().unsqueeze(-1).to(result.dtype)
                result[..., : part.num_queries, :].lerp_(found, share)
                log_sum[..., : part.num_queries] = joined
        ctx.save_for_backward(queries, keys, values, gathered, log_sums)
        ctx.pieces, ctx.how = pieces, how
        return gathered

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor | None, ...]:
        queries, keys, values, gathered, log_sums = ctx.saved_tensors
        gradients = [torch.zeros_like(each) for each in (queries, keys, values)]
        for piece in ctx.pieces:
            for part in piece.seen(ctx.how.window):
                asked = slice(piece.own, piece.own + part.num_queries)
                places = (asked, part.keys, part.keys)
                wanted, own, result = (_heads(each, piece.rows, asked) for each in (outer[0], queries, gathered))
                log_sum = log_sums[piece.rows, asked].transpose(1, 2)
                seen = [_heads(each, piece.rows, part.keys) for each in (keys, values)]
                arrays = _turned(part, wanted, own, *seen, result, log_sum)
                found = flash_backward(*arrays, 0.0, part.causal or part.mirrored, scale=ctx.how.scale)
                for gradient, where, grown in zip(gradients, places, _turned(part, *found), strict=True):
                    gradient[piece.rows, where] += grown.transpose(1, 2)
        return *gradients, None, None


def _part(
    own: Tensor, keys: Tensor, values: Tensor, piece: Span, part: Part, how: AttentionSpec
) -> tuple[Tensor, Tensor]:
    """What some of a piece's queries gather from a part, and the logarithms of their sums."""
    seen = (_heads(each, piece.rows, part.keys) for each in (keys, values))
    arrays = _turned(part, own[:, :, : part.num_queries], *seen)
    result, log_sum = _turned(part, *flash(*arrays, 0.0, part.causal or part.mirrored, scale=how.scale))
    return result, log_sum


def _turned(part: Part, *arrays: Tensor) -> tuple[Tensor, ...]:
    """Arrays (rows, heads, slots, ...) whose slots are in the other order where a part is mirrored."""
    return tuple(each.flip(2) for each in arrays) if part.mirrored else arrays


class _CappedAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, queries: Tensor, keys: Tensor, values: Tensor, pieces: tuple[Span, ...], how: AttentionSpec
    ) -> Tensor:
        gathered = torch.zeros_like(queries)
        for piece in pieces:
            places = _places(piece, how)
            arrays = zip((queries, keys, values), places, strict=True)
            query, key, value = (_heads(each, piece.rows, at) for each, at in arrays)
            found = explicit(query, key, value, _mask(piece, how, queries.device), how)
            gathered[piece.rows, piece.queries] = found.transpose(1, 2)
        ctx.save_for_backward(queries, keys, values)
        ctx.pieces, ctx.how = pieces, how
        return gathered

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor | None, ...]:
        arrays = ctx.saved_tensors
        gradients = [torch.zeros_like(each) for each in arrays]
        for piece in ctx.pieces:
            places = _places(piece, ctx.how)
            with torch.enable_grad():
                parts = [
                    _heads(each, piece.rows, at).detach().requires_grad_()
                    for each, at in zip(arrays, places, strict=True)
                ]
                query, key, value = parts
                found = explicit(query, key, value, _mask(piece, ctx.how, outer[0].device), ctx.how)
            grown = torch.autograd.grad(found, parts, _heads(outer[0], piece.rows, piece.queries))
            for gradient, at, part in zip(gradients, places, grown, strict=True):
                gradient[piece.rows, at] += part.transpose(1, 2)
        return *gradients, None, None


def _places(piece: Span, how: AttentionSpec) -> tuple[slice, slice, slice]:
    """Where a piece's queries are, the keys that it sees, and their values."""
    near = piece.nearest(how.window)
    return piece.queries, near, near


def _mask(piece: Span, how: AttentionSpec, device: torch.device) -> Tensor:
    """(queries, keys) of a piece, True where a query sees a key."""
    near = piece.nearest(how.window)
    slots = torch.arange(piece.slot, piece.slot + piece.length, device=device)[:, None]
    keys = torch.arange(near.start, near.stop, device=device)
    sees = keys <= slots
    return sees if how.window is None else sees & (keys > slots - how.window)


def explicit(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor, how: AttentionSpec) -> Tensor:
    """Attention as it is written, of (rows, heads, slots, head_dim), with scores that exist all at once."""
    rows, heads, slots, head_dim = queries.shape
    groups = queries.view(rows, keys.shape[1], heads // keys.shape[1], slots, head_dim)
    scale = head_dim**-0.5 if how.scale is None else how.scale
    scores = (groups @ keys[:, :, None].transpose(-2, -1)).float() * scale
    if how.softcap is not None:
        scores = (scores / how.softcap).tanh() * how.softcap
    if mask.ndim > 2:  # (rows, 1, queries, keys)
        mask = mask[:, None]
    shares = scores.masked_fill(~mask, float("-inf")).softmax(-1).to(values.dtype)
    gathered: Tensor = shares @ values[:, :, None]
    return gathered.flatten(1, 2)


def _heads(array: Tensor, rows: slice, slots: slice) -> Tensor:
    """Some slots of some rows, as torch wants them: (rows, heads, slots, head_dim), without a copy."""
    return array[rows, slots].transpose(1, 2)

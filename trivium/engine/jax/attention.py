"""Queries, keys and values -> what every slot has gathered from its document, or from its row.

Queries are taken in blocks, and each block meets the keys up to its own end: of the square of a row's slots, a
little more than half is computed. Within it documents are kept apart by their numbers. Padding comes last in a row,
sees itself and is seen by nothing else.

Where queries see only a window W of keys, a row is cut into stretches of W slots or more, at least MIN_STRETCH, which
are rows of their own; each has copies of the W - 1 keys before it in front. A query then meets W keys and those of its
own block, an eighth of a stretch: the price grows with T (W + W / 8), not with T T, and the code that is compiled does
not grow with the row. Forward and backward of a row, 4 heads of 64, on one core, against all keys = 1: windows of 128,
512 and 1,024 take 0.24, 0.68 and 0.78 at 2,048 slots, and 0.16, 0.31 and 0.60 at 4,096.

The backward pass computes the shares again instead of keeping them. On one CPU rows go one after the other, so that
a block's scores stay in the cache; elsewhere all rows go together. Forward and backward at 8 x 512, 4 heads of 64, on
one core, against torch's kernel = 1: 1.14 row by row and 1.4 together; what autodiff makes of plain attention in the
same blocks, 1.8.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.ad_checkpoint import checkpoint_name

from trivium.model.spec import AttentionSpec

Attend = Callable[[Array, Array, Array], Array]
"""Queries (B, T, heads, head_dim), keys and values (B, T, kv_heads, head_dim) -> what each query gathers."""

KEPT = "attention"  # the name of what recompute = "selective" does not compute again
MIN_BLOCK = 64
MAX_BLOCKS = 8  # each is compiled by itself, in every layer
MIN_STRETCH = MIN_BLOCK * MAX_BLOCKS
MIN_STRETCHES = 3  # the first one meets keys that only fill: fewer cost as much as the whole row's blocks
UNSEEN = -1e30  # finite, so that a query that sees nothing has no NaN
NO_DOCUMENT = -2  # of slots that only fill a stretch; padding's number is -1
EVERYTHING = AttentionSpec()


class AttendAs(Protocol):
    """Attention over the rows of a pass, in the way of each layer."""

    def __call__(self, queries: Array, keys: Array, values: Array, *, how: AttentionSpec) -> Array:
        """What each query gathers."""


@dataclass(frozen=True, slots=True)
class _Loop:
    """What decides the code of `_gather`."""

    row_by_row: bool
    window: int | None
    softcap: float | None


def attend(
    queries: Array,
    keys: Array,
    values: Array,
    segments: Array | None = None,
    row_by_row: bool = False,
    how: AttentionSpec = EVERYTHING,
) -> Array:
    """Softmax-weighted values, in the queries' shape.

    `segments` (B, T) numbers the documents that must not see each other; None joins them.
    """
    num_rows, seq_len, heads, head_dim = queries.shape
    kv_heads = keys.shape[2]
    scaled = queries * score_scale(how, head_dim)
    if segments is None:
        segments = jnp.zeros((num_rows, seq_len), jnp.int32)
    window = None if how.window is None or how.window >= seq_len else how.window
    stretches = 1 if window is None else seq_len // max(MIN_STRETCH, window)
    stretches = stretches if stretches >= MIN_STRETCHES else 1
    if window is not None and stretches > 1:
        scaled = _cut(scaled, stretches)
        keys, values = _cut(keys, stretches, window - 1), _cut(values, stretches, window - 1)
        segments = _cut(segments, stretches, window - 1, NO_DOCUMENT)
    grouped = scaled.reshape(*scaled.shape[:2], kv_heads, heads // kv_heads, head_dim).transpose(0, 2, 3, 1, 4)
    loop = _Loop(row_by_row, window, how.softcap)
    gathered = _gather(loop, grouped, keys.transpose(0, 2, 1, 3), values.transpose(0, 2, 1, 3), segments)
    in_slots = gathered.transpose(0, 3, 1, 2, 4)
    if stretches > 1:
        in_slots = in_slots.reshape(num_rows, -1, heads, head_dim)[:, :seq_len]
    return in_slots.reshape(queries.shape)


def score_scale(how: AttentionSpec, head_dim: int) -> float:
    """What queries times keys are multiplied by."""
    return head_dim**-0.5 if how.scale is None else how.scale


def _cut(array: Array, stretches: int, before: int = 0, empty: int = 0) -> Array:
    """Rows (B, T, ...) -> stretches of them as rows, each with as many slots of the one before it in front."""
    num_rows, slots, *others = array.shape
    size = math.ceil(slots / stretches)
    nothing = [(0, 0)] * len(others)
    filled = jnp.pad(array, [(0, 0), (0, stretches * size - slots), *nothing], constant_values=empty)
    parts = filled.reshape(num_rows, stretches, size, *others)
    if before:
        ends = jnp.pad(parts[:, :-1, size - before :], [(0, 0), (1, 0), (0, 0), *nothing], constant_values=empty)
        parts = jnp.concatenate((ends, parts), axis=2)
    return parts.reshape(num_rows * stretches, before + size, *others)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _gather(loop: _Loop, queries: Array, keys: Array, values: Array, segments: Array) -> Array:
    """Queries (B, kv_heads, group, T, head_dim) of a row's last slots; keys and values (B, kv_heads, slots, head_dim).

    The segments (B, slots) are the keys'.
    """
    gathered, _ = _over_rows(loop, _forward, queries, keys, values, segments)
    return gathered


def _gather_forward(
    loop: _Loop, queries: Array, keys: Array, values: Array, segments: Array
) -> tuple[Array, tuple[Array, ...]]:
    found = _over_rows(loop, _forward, queries, keys, values, segments)
    gathered, log_sums = (checkpoint_name(each, KEPT) for each in found)
    return gathered, (queries, keys, values, segments, gathered, log_sums)


def _gather_backward(loop: _Loop, kept: tuple[Array, ...], outer: Array) -> tuple[Array | None, ...]:
    return *_over_rows(loop, _backward, *kept, outer), None


_gather.defvjp(_gather_forward, _gather_backward)


def _over_rows(loop: _Loop, function: Callable[..., Any], *arrays: Array) -> Any:
    """A function of arrays with rows first, of all rows at once or of one after the other."""
    if not loop.row_by_row:
        return function(loop, *arrays)
    parts = lax.map(lambda row: function(loop, *row), tuple(array[:, None] for array in arrays))
    return jax.tree.map(lambda part: part[:, 0], parts)


def _forward(loop: _Loop, queries: Array, keys: Array, values: Array, segments: Array) -> tuple[Array, Array]:
    """What is gathered, and the log of every softmax's sum."""
    gathered, log_sums = [], []
    for here, seen in _blocks(queries.shape[3], keys.shape[2], loop.window):
        scores = _scores(loop, queries, keys, segments, here, seen)
        largest = scores.max(axis=-1, keepdims=True)
        exponents = jnp.exp(scores - largest)
        sums = exponents.sum(axis=-1, keepdims=True)
        summed = product("bkgts,bksd->bkgtd", exponents.astype(values.dtype), values[:, :, seen])
        gathered.append((summed / sums).astype(queries.dtype))
        log_sums.append(largest + jnp.log(sums))
    return jnp.concatenate(gathered, axis=3), jnp.concatenate(log_sums, axis=3)


def _backward(
    loop: _Loop,
    queries: Array,
    keys: Array,
    values: Array,
    segments: Array,
    gathered: Array,
    log_sums: Array,
    outer: Array,
) -> tuple[Array, Array, Array]:
    """Gradients of queries, keys and values; those of keys and values are summed over blocks in float32."""
    # What a query gains from a key is the key's value against what it has gathered already.
    already = (gathered.astype(jnp.float32) * outer).sum(axis=-1, keepdims=True)
    of_queries, of_keys, of_values = [], jnp.zeros(keys.shape), jnp.zeros(values.shape)
    for here, seen in _blocks(queries.shape[3], keys.shape[2], loop.window):
        scores = _scores(loop, queries, keys, segments, here, seen)
        shares = jnp.exp(scores - log_sums[:, :, :, here])
        gained = product("bkgtd,bksd->bkgts", outer[:, :, :, here], values[:, :, seen])
        of_scores = times_slope(shares * (gained - already[:, :, :, here]), scores, loop.softcap).astype(queries.dtype)
        of_queries.append(product("bkgts,bksd->bkgtd", of_scores, keys[:, :, seen]).astype(queries.dtype))
        of_keys = of_keys.at[:, :, seen].add(product("bkgts,bkgtd->bksd", of_scores, queries[:, :, :, here]))
        shared = product("bkgts,bkgtd->bksd", shares.astype(outer.dtype), outer[:, :, :, here])
        of_values = of_values.at[:, :, seen].add(shared)
    return jnp.concatenate(of_queries, axis=3), of_keys.astype(keys.dtype), of_values.astype(values.dtype)


def _blocks(queries: int, keys: int, window: int | None) -> list[tuple[slice, slice]]:
    """Places of each block among the queries, and of what it may see among the keys; both end in the same slot."""
    size = max(MIN_BLOCK, math.ceil(queries / MAX_BLOCKS))
    ends = [min(queries, start + size) for start in range(0, queries, size)]
    before = keys - queries

    def seen(start: int, end: int) -> slice:
        return slice(0 if window is None else max(0, before + start - window + 1), before + end)

    return [(slice(start, end), seen(start, end)) for start, end in zip([0, *ends], ends, strict=False)]


def _scores(loop: _Loop, queries: Array, keys: Array, segments: Array, here: slice, seen: slice) -> Array:
    """Of a block's queries against its keys, float32."""
    scores = capped(product("bkgtd,bksd->bkgts", queries[:, :, :, here], keys[:, :, seen]), loop.softcap)
    before = keys.shape[2] - queries.shape[3]
    asking = slice(before + here.start, before + here.stop)
    slots = jnp.arange(segments.shape[1])
    sees = (slots[asking, None] >= slots[seen]) & (segments[:, asking, None] == segments[:, None, seen])
    if loop.window is not None:
        sees &= slots[asking, None] - slots[seen] < loop.window
    return jnp.where(sees[:, None, None], scores, UNSEEN)


def product(terms: str, one: Array, other: Array) -> Array:
    return jnp.einsum(terms, one, other, preferred_element_type=jnp.float32)


def capped(values: Array, limit: float | None) -> Array:
    """Values x as c tanh(x / c), below a limit c; as they are where there is none. Scores are, and logits."""
    return values if limit is None else limit * jnp.tanh(values / limit)


def times_slope(gradient: Array, found: Array, limit: float | None) -> Array:
    """A gradient by capped values -> by the values themselves.

    What is masked has a value far below the limit, and a slope of zero.
    """
    return gradient if limit is None else gradient * (1 - jnp.square(jnp.clip(found / limit, -1, 1)))

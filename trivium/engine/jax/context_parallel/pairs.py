"""Blocks of queries against blocks of keys, one pair after the other: what a device computes of rows that it shares.

    device      stretches of its queries      keys that these see      pairs of stretches
    0           0 and 7                       1 and 8 of 8             9
    3           3 and 4                       4 and 5                  9

A device of C has two of a row's 2C stretches, the rth from the start and the rth from the end, so that all have
equally many pairs to compute, and a loop of one length computes them on each: which ones it looks up by the device's
number. Nothing that lies wholly in the future is computed; of the pairs on the diagonal half is masked. Sums of the
softmax are rescaled as larger scores come (online softmax), so that a device never holds more than one pair's scores.

Where queries see a window of keys, pairs that lie wholly before it are not computed either. The devices that have a
row's first blocks have fewer then: all take as many turns as the busiest, and in those beyond their own see nothing.

The backward pass computes the shares again instead of keeping them, pair by pair in the same order.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.ad_checkpoint import checkpoint_name
from numpy.typing import NDArray

from trivium.engine.jax.attention import EVERYTHING, KEPT, UNSEEN, capped, product, times_slope
from trivium.model.spec import AttentionSpec


class Pairs(NamedTuple):
    """What is computed one after the other: blocks by where they are stored, and by where they are in the row."""

    query: Array  # the number of the block among the device's own
    key: Array  # among all
    query_place: Array
    key_place: Array


class Softmax(NamedTuple):
    """Of every block of queries so far: the largest score, and sums of what has this score as its unit."""

    largest: Array  # (blocks, B, kv_heads, group, slots, 1)
    sums: Array
    gathered: Array  # (blocks, B, kv_heads, group, slots, head_dim)


def stored_places(blocks: int, context: int) -> NDArray[np.int64]:
    """The places in a row of all blocks, device by device, where each stretch has this many blocks."""
    stretches = np.arange(2 * context * blocks).reshape(2 * context, blocks)
    by_device = np.stack((stretches[:context], stretches[context:][::-1]), axis=1)
    return by_device.reshape(-1)


def pairs_of(device: Array | int, blocks: int, context: int, reach: int | None = None) -> Pairs:
    """All pairs of a device whose queries see anything in them, where they reach this many blocks back (None: all).

    A device that has fewer than another is given pairs with a key's block after the query's at the end.
    """
    places = stored_places(blocks, context)
    by_device = places.reshape(context, -1)
    before = by_device if reach is None else np.minimum(by_device, reach)
    own, seen = jnp.asarray(by_device)[device], jnp.asarray(before + 1)[device]  # those before it, and itself
    ends = jnp.cumsum(seen)
    number = jnp.arange((before + 1).sum(axis=1).max())
    query = jnp.minimum(jnp.searchsorted(ends, number, side="right"), len(own) - 1)
    key_place = own[query] + 1 + number - ends[query]
    stored = jnp.asarray(np.argsort(places))[jnp.minimum(key_place, len(places) - 1)]
    return Pairs(query, stored, own[query], key_place)


def blocks_back(window: int | None, size: int) -> int | None:
    """How many blocks of this size before its own a query's window reaches into."""
    return None if window is None else -(-(window - 1) // size)


@partial(jax.custom_vjp, nondiff_argnums=(6,))
def attend_pairs(
    queries: Array,
    keys: Array,
    values: Array,
    segments: Array,
    own: Array,
    pairs: Pairs,
    how: AttentionSpec = EVERYTHING,
) -> Array:
    """Softmax-weighted values of a device's own queries, all with blocks first.

    Queries (own blocks, B, kv_heads, group, slots, head_dim), scaled; keys and values (blocks, B, kv_heads, slots,
    head_dim); segments (blocks, B, slots) and those of the own blocks.
    """
    gathered, _ = _forward(queries, keys, values, segments, own, pairs, how)
    return gathered


def _forward(
    queries: Array, keys: Array, values: Array, segments: Array, own: Array, pairs: Pairs, how: AttentionSpec
) -> tuple[Array, Array]:
    """What is gathered, and the log of every softmax's sum."""

    def add(found: Softmax, pair: Pairs) -> tuple[Softmax, None]:
        before = jax.tree.map(partial(_block, number=pair.query), found)
        scores = _scores(queries, keys, segments, own, pair, how)
        largest = jnp.maximum(before.largest, scores.max(axis=-1, keepdims=True))
        exponents, kept = jnp.exp(scores - largest), jnp.exp(before.largest - largest)
        more = product("bkgts,bksd->bkgtd", exponents.astype(values.dtype), _block(values, pair.key))
        sums = before.sums * kept + exponents.sum(axis=-1, keepdims=True)
        after = Softmax(largest, sums, before.gathered * kept + more)
        return jax.tree.map(partial(_put, number=pair.query), found, after), None

    column = (*queries.shape[:-1], 1)
    nothing = Softmax(jnp.full(column, UNSEEN), jnp.zeros(column), jnp.zeros(queries.shape))
    found, _ = lax.scan(add, nothing, pairs)
    return (found.gathered / found.sums).astype(queries.dtype), found.largest + jnp.log(found.sums)


def _kept_forward(
    queries: Array, keys: Array, values: Array, segments: Array, own: Array, pairs: Pairs, how: AttentionSpec
) -> tuple[Array, tuple[Array | Pairs, ...]]:
    found = _forward(queries, keys, values, segments, own, pairs, how)
    gathered, log_sums = (checkpoint_name(each, KEPT) for each in found)
    return gathered, (queries, keys, values, segments, own, pairs, gathered, log_sums)


def _backward(
    how: AttentionSpec, kept: tuple[Array, Array, Array, Array, Array, Pairs, Array, Array], outer: Array
) -> tuple[Array | None, ...]:
    """Gradients of queries, keys and values, summed over pairs in float32."""
    queries, keys, values, segments, own, pairs, gathered, log_sums = kept
    # What a query gains from a key is the key's value against what it has gathered already.
    already = (gathered.astype(jnp.float32) * outer).sum(axis=-1, keepdims=True)

    def add(sums: tuple[Array, Array, Array], pair: Pairs) -> tuple[tuple[Array, Array, Array], None]:
        of_queries, of_keys, of_values = sums
        scores = _scores(queries, keys, segments, own, pair, how)
        shares = jnp.exp(scores - _block(log_sums, pair.query))
        above = _block(outer, pair.query)
        gained = product("bkgtd,bksd->bkgts", above, _block(values, pair.key))
        of_scores = shares * (gained - _block(already, pair.query))
        of_scores = times_slope(of_scores, scores, how.softcap).astype(queries.dtype)
        to_query = product("bkgts,bksd->bkgtd", of_scores, _block(keys, pair.key))
        to_key = product("bkgts,bkgtd->bksd", of_scores, _block(queries, pair.query))
        to_value = product("bkgts,bkgtd->bksd", shares.astype(outer.dtype), above)
        of_queries = _put(of_queries, _block(of_queries, pair.query) + to_query, pair.query)
        of_keys = _put(of_keys, _block(of_keys, pair.key) + to_key, pair.key)
        of_values = _put(of_values, _block(of_values, pair.key) + to_value, pair.key)
        return (of_queries, of_keys, of_values), None

    nothing = (jnp.zeros(queries.shape), jnp.zeros(keys.shape), jnp.zeros(values.shape))
    (of_queries, of_keys, of_values), _ = lax.scan(add, nothing, pairs)
    gradients = of_queries.astype(queries.dtype), of_keys.astype(keys.dtype), of_values.astype(values.dtype)
    return *gradients, None, None, None


attend_pairs.defvjp(_kept_forward, _backward)


def _scores(queries: Array, keys: Array, segments: Array, own: Array, pair: Pairs, how: AttentionSpec) -> Array:
    """Of a pair's queries against its keys (B, kv_heads, group, slots, slots), float32."""
    scores = capped(product("bkgtd,bksd->bkgts", _block(queries, pair.query), _block(keys, pair.key)), how.softcap)
    size = segments.shape[-1]
    slots = jnp.arange(size)
    back = (pair.query_place - pair.key_place) * size + slots[:, None] - slots  # from a query to a key, in slots
    in_reach = back >= 0 if how.window is None else (back >= 0) & (back < how.window)
    sees = in_reach & (_block(own, pair.query)[:, :, None] == _block(segments, pair.key)[:, None])
    return jnp.where(sees[:, None, None], scores, UNSEEN)


def _block(array: Array, number: Array) -> Array:
    return lax.dynamic_index_in_dim(array, number, keepdims=False)


def _put(array: Array, block: Array, number: Array) -> Array:
    return lax.dynamic_update_index_in_dim(array, block, number, 0)

"""Blocks of queries against blocks of keys, one pair after the other: what a device computes of rows that it shares.

    device      stretches of its queries      keys that these see      pairs of stretches
    0           0 and 7                       1 and 8 of 8             9
    3           3 and 4                       4 and 5                  9

A device of C has two of a row's 2C stretches, the rth from the start and the rth from the end, so that all have
equally many pairs to compute, and a loop of one length computes them on each: which ones it looks up by the device's
number. Nothing that lies wholly in the future is computed; of the pairs on the diagonal half is masked. Sums of the
softmax are rescaled as larger scores come (online softmax), so that a device never holds more than one pair's scores.

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

from trivium.engine.jax.attention import KEPT, UNSEEN, product


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


def pairs_of(device: Array | int, blocks: int, context: int) -> Pairs:
    """All pairs of a device whose queries see anything in them."""
    places = stored_places(blocks, context)
    own = jnp.asarray(places.reshape(context, -1))[device]
    ends = jnp.cumsum(own + 1)  # a query's block sees those before it, and itself
    number = jnp.arange(blocks * (2 * context * blocks + 1))
    query = jnp.searchsorted(ends, number, side="right")
    key_place = number - (ends - own - 1)[query]
    return Pairs(query, jnp.asarray(np.argsort(places))[key_place], own[query], key_place)


@jax.custom_vjp
def attend_pairs(queries: Array, keys: Array, values: Array, segments: Array, own: Array, pairs: Pairs) -> Array:
    """Softmax-weighted values of a device's own queries, all with blocks first.

    Queries (own blocks, B, kv_heads, group, slots, head_dim), scaled; keys and values (blocks, B, kv_heads, slots,
    head_dim); segments (blocks, B, slots) and those of the own blocks.
    """
    gathered, _ = _forward(queries, keys, values, segments, own, pairs)
    return gathered


def _forward(
    queries: Array, keys: Array, values: Array, segments: Array, own: Array, pairs: Pairs
) -> tuple[Array, Array]:
    """What is gathered, and the log of every softmax's sum."""

    def add(found: Softmax, pair: Pairs) -> tuple[Softmax, None]:
        before = jax.tree.map(partial(_block, number=pair.query), found)
        scores = _scores(queries, keys, segments, own, pair)
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
    queries: Array, keys: Array, values: Array, segments: Array, own: Array, pairs: Pairs
) -> tuple[Array, tuple[Array | Pairs, ...]]:
    found = _forward(queries, keys, values, segments, own, pairs)
    gathered, log_sums = (checkpoint_name(each, KEPT) for each in found)
    return gathered, (queries, keys, values, segments, own, pairs, gathered, log_sums)


def _backward(
    kept: tuple[Array, Array, Array, Array, Array, Pairs, Array, Array], outer: Array
) -> tuple[Array | None, ...]:
    """Gradients of queries, keys and values, summed over pairs in float32."""
    queries, keys, values, segments, own, pairs, gathered, log_sums = kept
    # What a query gains from a key is the key's value against what it has gathered already.
    already = (gathered.astype(jnp.float32) * outer).sum(axis=-1, keepdims=True)

    def add(sums: tuple[Array, Array, Array], pair: Pairs) -> tuple[tuple[Array, Array, Array], None]:
        of_queries, of_keys, of_values = sums
        shares = jnp.exp(_scores(queries, keys, segments, own, pair) - _block(log_sums, pair.query))
        above = _block(outer, pair.query)
        gained = product("bkgtd,bksd->bkgts", above, _block(values, pair.key))
        of_scores = (shares * (gained - _block(already, pair.query))).astype(queries.dtype)
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


def _scores(queries: Array, keys: Array, segments: Array, own: Array, pair: Pairs) -> Array:
    """Of a pair's queries against its keys (B, kv_heads, group, slots, slots), float32."""
    scores = product("bkgtd,bksd->bkgts", _block(queries, pair.query), _block(keys, pair.key))
    slots = jnp.arange(segments.shape[-1])
    causal = (slots[:, None] >= slots) | (pair.key_place < pair.query_place)
    sees = causal & (_block(own, pair.query)[:, :, None] == _block(segments, pair.key)[:, None])
    return jnp.where(sees[:, None, None], scores, UNSEEN)


def _block(array: Array, number: Array) -> Array:
    return lax.dynamic_index_in_dim(array, number, keepdims=False)


def _put(array: Array, block: Array, number: Array) -> Array:
    return lax.dynamic_update_index_in_dim(array, block, number, 0)

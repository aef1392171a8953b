"""Rows whose slots several devices share: their order, and attention across these devices.

    slots of a row      | 0 1 | 2 3 | 4 5 | 6 7 |       on two devices: four stretches
    device 0            | 0 1 | 6 7 |                   the first from the start and from the end
    device 1            | 2 3 | 4 5 |

Under a causal mask each device then has as much to compute as any other (head-tail order). All that is not attention
works slot by slot and never notices. In attention the devices exchange, once a layer and pass,

    gather      keys and values: a device's own queries meet those of all devices, pair by pair (`pairs`)
    ulysses     slots for heads: a device has the whole row of some heads, and gives back what these gathered

`gather` keeps a layer's keys and values whole on every device until the backward pass (`recompute` lets them go);
`ulysses` needs heads that divide, and sends queries and what they gather as well. Layers whose queries see a window
of keys compute what it reaches, in blocks of up to MAX_BLOCK slots, and send as much as any other.
"""

import math
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import PartitionSpec
from numpy.typing import NDArray

from trivium.engine.base import ContextMethod
from trivium.engine.jax.attention import AttendAs, attend, score_scale
from trivium.engine.jax.context_parallel.pairs import attend_pairs, blocks_back, pairs_of, stored_places
from trivium.engine.jax.sharding import CONTEXT, ROWS, TENSOR, one_device
from trivium.model.spec import AttentionSpec

MAX_BLOCK = 512  # slots of a block of queries or keys


def shared_slots(seq_len: int, context: int) -> int:
    """Slots of a row that `context` devices share: those of the row and, at its end, what fills up all blocks."""
    if context == 1:
        return seq_len
    multiple = 2 * context * math.ceil(seq_len / (2 * context * MAX_BLOCK))
    return math.ceil(seq_len / multiple) * multiple


def head_tail(slots: int, context: int) -> NDArray[np.int64]:
    """The slots of a row in the order in which devices hold them, one device after the other."""
    return np.arange(slots) if context == 1 else stored_places(slots // (2 * context), context)


def context_size() -> int:
    """Inside of a compiled step: how many devices share each row."""
    return 1 if one_device() else jax.sharding.get_abstract_mesh().shape[CONTEXT]


def attend_shared(method: ContextMethod, segments: Array | None) -> AttendAs:
    """Attention over rows that devices share; rows and segments (B, T) are in head-tail order."""
    inside: Callable[..., Array] = _gather if method == "gather" else _ulysses
    heads, rows = PartitionSpec(ROWS, CONTEXT, TENSOR), PartitionSpec(ROWS)
    if segments is not None:
        segments = lax.with_sharding_constraint(segments, rows)  # of whole rows, once for all layers

    def attend_over(queries: Array, keys: Array, values: Array, *, how: AttentionSpec) -> Array:
        kept_apart = jnp.zeros(queries.shape[:2], jnp.int32) if segments is None else segments
        own = partial(inside, how=how)
        shared = jax.shard_map(own, in_specs=(heads, heads, heads, rows), out_specs=heads, check_vma=False)
        return jnp.asarray(shared(queries, keys, values, kept_apart))

    return attend_over


def _gather(queries: Array, keys: Array, values: Array, segments: Array, how: AttentionSpec) -> Array:
    """A device's own queries (B, its slots, heads, head_dim) against all keys of their rows."""
    rows, slots, heads, head_dim = queries.shape
    kv_heads, context = keys.shape[2], lax.axis_size(CONTEXT)
    blocks = math.ceil(slots / (2 * MAX_BLOCK))  # of each of its two stretches
    size = slots // (2 * blocks)
    device = lax.axis_index(CONTEXT)

    def in_blocks(array: Array) -> Array:
        """(B, slots, kv_heads or as many groups, head_dim) -> (blocks, B, kv_heads, [group,] size, head_dim)."""
        cut = array.reshape(rows, 2 * blocks, size, kv_heads, -1, head_dim)
        return cut.transpose(1, 0, 3, 4, 2, 5)

    def of_all(array: Array) -> Array:
        return lax.all_gather(in_blocks(array)[:, :, :, 0], CONTEXT, tiled=True)

    numbers = segments.reshape(rows, -1, size).transpose(1, 0, 2)
    own = lax.dynamic_slice_in_dim(numbers, device * 2 * blocks, 2 * blocks)
    pairs = pairs_of(device, blocks, context, blocks_back(how.window, size))
    scaled = in_blocks(queries * score_scale(how, head_dim))
    gathered = attend_pairs(scaled, of_all(keys), of_all(values), numbers, own, pairs, how)
    return gathered.transpose(1, 0, 4, 2, 3, 5).reshape(rows, slots, heads, head_dim)


def _ulysses(queries: Array, keys: Array, values: Array, segments: Array, how: AttentionSpec) -> Array:
    """A device's share of the heads, over whole rows, and back."""
    context = lax.axis_size(CONTEXT)
    order = head_tail(segments.shape[1], context)
    back = np.argsort(order)

    def whole_rows(array: Array) -> Array:
        return lax.all_to_all(array, CONTEXT, split_axis=2, concat_axis=1, tiled=True)[:, back]

    shared = whole_rows(queries), whole_rows(keys), whole_rows(values)
    gathered = attend(*shared, segments[:, back], how=how)
    return lax.all_to_all(gathered[:, order], CONTEXT, split_axis=1, concat_axis=2, tiled=True)

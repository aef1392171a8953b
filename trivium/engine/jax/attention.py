"""Queries, keys and values -> what every slot has gathered from its document, or from its row.

Queries are taken in blocks, and each block meets the keys up to its own end: of the square of a row's slots, a
little more than half is computed. Within it documents are kept apart by their numbers. Padding comes last in a row,
sees itself and is seen by nothing else.
"""

import math
from collections.abc import Callable

import jax.numpy as jnp
from jax import Array, nn

Attend = Callable[[Array, Array, Array], Array]
"""Queries (B, T, heads, head_dim), keys and values (B, T, kv_heads, head_dim) -> what each query gathers."""

MIN_BLOCK = 128
MAX_BLOCKS = 8  # each is compiled by itself, in every layer
UNSEEN = -1e30  # finite, so that a row of them has no NaN in its gradient


def attend(queries: Array, keys: Array, values: Array, segments: Array | None) -> Array:
    """Softmax-weighted values, in the queries' shape; queries (B, T, heads, head_dim), the others fewer heads.

    `segments` (B, T) numbers the documents that must not see each other; None joins them.
    """
    num_rows, seq_len, heads, head_dim = queries.shape
    kv_heads = keys.shape[2]
    grouped = queries.reshape(num_rows, seq_len, kv_heads, heads // kv_heads, head_dim)
    size = block_size(seq_len)
    gathered = [
        _block(grouped, keys, values, segments, start, min(seq_len, start + size)) for start in range(0, seq_len, size)
    ]
    return jnp.concatenate(gathered, axis=1).reshape(queries.shape)


def block_size(seq_len: int) -> int:
    """Queries in one block."""
    return max(MIN_BLOCK, math.ceil(seq_len / MAX_BLOCKS))


def _block(queries: Array, keys: Array, values: Array, segments: Array | None, start: int, end: int) -> Array:
    """What the queries of the slots [start, end) gather."""
    scale = 1 / math.sqrt(queries.shape[-1])
    scores = jnp.einsum(
        "btkgd,bskd->bkgts", queries[:, start:end] * scale, keys[:, :end], preferred_element_type=jnp.float32
    )
    sees = jnp.arange(start, end)[:, None] >= jnp.arange(end)[None, :]
    if segments is not None:
        sees = sees & (segments[:, start:end, None] == segments[:, None, :end])
        sees = sees[:, None, None]
    shares = nn.softmax(jnp.where(sees, scores, UNSEEN), axis=-1).astype(values.dtype)
    return jnp.einsum("bkgts,bskd->btkgd", shares, values[:, :end])

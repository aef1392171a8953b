"""Prompts -> rows that grow: one pass over all prompts, then one over a token of each row at a time.

    slot      0 1 2 3 4 5
    row 0     . a b c d e       five tokens so far: the slots before its first are masked
    row 1     . . . x y z       three

All rows end at the same slot. Rows, slots and prompts come in powers of two, so that few shapes are compiled: a room
that is full is doubled, and rows that only fill up repeat the first one. Rotary positions are the row's own.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax, nn
from jax.sharding import Mesh
from numpy.typing import NDArray

from trivium.data.batch import PADDING
from trivium.engine.jax.attention import UNSEEN, attend
from trivium.engine.jax.model import Design, Params
from trivium.engine.jax.rotary import Rotation

FIRST_SLOTS = 64

Cache = list[tuple[Array, Array]]
"""Keys and values of every layer: (rows, slots, kv_heads, head_dim) each."""


class JaxGeneration:
    """Rows of a decoder that stands still; `table` has a turn for every position that they may come to."""

    def __init__(
        self,
        design: Design,
        params: Params,
        table: Rotation,
        mesh: Mesh,
        prompts: Sequence[NDArray[np.integer]],
        room: int,
    ) -> None:
        self.design = design
        self.params = params
        self.table = table
        self.mesh = mesh
        self.num_rows = len(prompts)
        self.filled = power_of_two(max((len(prompt) for prompt in prompts), default=1))
        self.limit = self.filled + room
        self.slots = power_of_two(max(FIRST_SLOTS, self.filled + 1))
        self.first = np.array([self.filled - len(prompt) for prompt in prompts], np.int32)
        self.cache: Cache = []
        self._logits = np.zeros((0, design.spec.vocab), np.float32)
        if prompts:
            self._prefill(prompts)

    def logits(self) -> NDArray[np.float32]:
        """For each row's next token: (rows, vocab)."""
        return self._logits.copy()

    def append(self, tokens: NDArray[np.integer]) -> None:
        """One more token for each row."""
        assert len(tokens) == self.num_rows, "a token for each row"
        assert self.filled < self.limit, "more tokens than room was asked for"
        if not self.num_rows:
            return
        if self.filled == self.slots:
            self.slots *= 2
            self.cache = _wider(self.cache, self.slots)
        here = np.int32(self.filled)
        given = _filled_up(np.asarray(tokens, np.int32)), _filled_up(self.first), here
        with jax.set_mesh(self.mesh):
            logits, self.cache = _append(self.design, self.params, self.table, self.cache, *given)
        self.filled += 1
        self._take(logits)

    def select(self, rows: NDArray[np.integer]) -> None:
        """Go on with these rows in this order."""
        chosen = np.asarray(rows, np.int32)
        self.num_rows, self.first, self._logits = len(chosen), self.first[chosen], self._logits[chosen]
        if self.num_rows:
            self.cache = _selected(self.cache, _filled_up(chosen))
        else:
            self.cache = []

    def _prefill(self, prompts: Sequence[NDArray[np.integer]]) -> None:
        tokens = np.zeros((self.num_rows, self.filled), np.int32)
        for row, (first, prompt) in enumerate(zip(self.first, prompts, strict=True)):
            tokens[row, first:] = prompt
        with jax.set_mesh(self.mesh):
            logits, self.cache = _first_pass(
                self.design, self.slots, self.params, self.table, _filled_up(tokens), _filled_up(self.first)
            )
        self._take(logits)

    def _take(self, logits: Array) -> None:
        self._logits = np.asarray(logits)[: self.num_rows]


def power_of_two(size: int) -> int:
    """The smallest that is no less."""
    return 1 << (size - 1).bit_length()


def _filled_up(rows: NDArray[Any]) -> NDArray[Any]:
    """As many rows as a power of two; the first one again at the end."""
    return np.concatenate([rows, np.repeat(rows[:1], power_of_two(len(rows)) - len(rows), axis=0)])


@partial(jax.jit, static_argnums=(0, 1))
def _first_pass(
    design: Design, slots: int, params: Params, table: Rotation, tokens: Array, first: Array
) -> tuple[Array, Cache]:
    """Logits after the last slot, and the keys and values of all prompts."""
    model, length = design.decoder(params), tokens.shape[1]
    at = jnp.arange(length) - first[:, None]
    segments = jnp.where(at < 0, PADDING, 0)
    cache: Cache = []

    def keep(queries: Array, keys: Array, values: Array) -> Array:
        room = [(0, 0), (0, slots - length), (0, 0), (0, 0)]
        cache.append((jnp.pad(keys, room), jnp.pad(values, room)))
        return attend(queries, keys, values, segments)

    hidden = model(tokens, table.at(jnp.maximum(at, 0)), keep)
    return _logits(design, hidden[:, -1], model.last_matrix), cache


@partial(jax.jit, static_argnums=0, donate_argnums=3)
def _append(
    design: Design, params: Params, table: Rotation, cache: Cache, tokens: Array, first: Array, here: Array
) -> tuple[Array, Cache]:
    """Logits after one more token of each row, which stands in the slot `here` from now on."""
    model = design.decoder(params)
    kept = iter(cache)
    filled: Cache = []

    def ask(queries: Array, keys: Array, values: Array) -> Array:
        all_keys, all_values = (
            lax.dynamic_update_slice_in_dim(old, new, here, axis=1)
            for old, new in zip(next(kept), (keys, values), strict=True)
        )
        filled.append((all_keys, all_values))
        rows, slots, kv_heads, head_dim = all_keys.shape
        grouped = queries.reshape(rows, kv_heads, -1, head_dim) * head_dim**-0.5
        scores = jnp.einsum("rkgd,rskd->rkgs", grouped, all_keys, preferred_element_type=jnp.float32)
        slot = jnp.arange(slots)
        sees = (slot >= first[:, None]) & (slot <= here)
        shares = nn.softmax(jnp.where(sees[:, None, None], scores, UNSEEN), axis=-1).astype(values.dtype)
        return jnp.einsum("rkgs,rskd->rkgd", shares, all_values).reshape(queries.shape)

    hidden = model(tokens[:, None], table.at((here - first)[:, None]), ask)
    return _logits(design, hidden[:, -1], model.last_matrix), filled


@jax.jit
def _selected(cache: Cache, rows: Array) -> Cache:
    return jax.tree.map(lambda part: part[rows], cache)


@partial(jax.jit, static_argnums=1)
def _wider(cache: Cache, slots: int) -> Cache:
    return jax.tree.map(lambda part: jnp.pad(part, [(0, 0), (0, slots - part.shape[1]), (0, 0), (0, 0)]), cache)


def _logits(design: Design, hidden: Array, matrix: Array) -> Array:
    """Float32, without the padded vocabulary."""
    used = matrix[: design.spec.vocab].astype(hidden.dtype)
    return jnp.einsum("rw,vw->rv", hidden, used, preferred_element_type=jnp.float32)

"""Prompts -> rows that grow: one pass over all prompts, then one over a token of each row at a time.

    slot      0 1 2 3 4 5
    row 0     . a b c d e       five tokens so far: the slots before its first are masked
    row 1     . . . x y z       three

All rows end at the same slot. Rows, slots and prompts come in powers of two, so that few shapes are compiled: a room
that is full is doubled, and rows of zeros fill up. Rotary positions are the row's own.

A layer whose queries see a window of keys keeps no more of them than that: slot s is in place s modulo the window.

Rows are shared out to the devices as those of a batch are. Each process brings rows of its own, of any number:
before each pass they agree on the most that any has, and all fill up to that. A selection waits for the next pass,
and moves keys and values between devices.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax, nn
from jax.sharding import Mesh
from numpy.typing import NDArray

from trivium.engine.jax.attention import UNSEEN, attend, capped, score_scale
from trivium.engine.jax.layers import Rotations
from trivium.engine.jax.loss import LogitForm
from trivium.engine.jax.model import Design, Params
from trivium.engine.jax.ranks import largest
from trivium.engine.jax.sharding import first_reader, keep_heads, keep_rows, own_rows, put_rows, rows_multiple
from trivium.model.spec import AttentionSpec, ModelSpec
from trivium.rows.batch import PADDING

FIRST_SLOTS = 64

KVCache = list[tuple[Array, Array]]
"""Keys and values of every layer: (rows, slots, kv_heads, head_dim) each; of a sliding one no more than its window."""


class JaxGeneration:
    """Rows of a model whose weights do not change; `tables` have a rotation for every position that they may reach.

    No prompt of any process is longer than `longest`.
    """

    def __init__(
        self,
        design: Design,
        params: Params,
        tables: Rotations,
        mesh: Mesh,
        prompts: Sequence[NDArray[np.integer]],
        longest: int,
        room: int,
    ) -> None:
        self.design = design
        self.params = params
        self.tables = tables
        self.mesh = mesh
        self.num_rows = len(prompts)
        self.filled = power_of_two(longest)
        self.limit = self.filled + room
        self.slots = power_of_two(max(FIRST_SLOTS, self.filled + 1))
        self.first = np.array([self.filled - len(prompt) for prompt in prompts], np.int32)
        self.chosen: NDArray[np.int32] | None = None  # rows of the cache that continue, where that changes
        self.cache: KVCache = []
        self._logits = np.zeros((0, design.spec.vocab), np.float32)
        self.size = self._size(*largest(mesh, self.num_rows))
        if self.size:
            self._prefill(prompts)

    def logits(self) -> NDArray[np.float32]:
        return self._logits.copy()

    def append(self, tokens: NDArray[np.integer]) -> None:
        assert len(tokens) == self.num_rows, "a token for each row"
        assert self.filled < self.limit, "more tokens than room was asked for"
        self._apply_selection()
        if not self.size:
            return
        if self.filled == self.slots:
            self.slots *= 2
            with jax.set_mesh(self.mesh):
                self.cache = _wider(self.cache, _slots_kept(self.design.spec, self.slots))
        given = self._put(np.asarray(tokens, np.int32)), self._put(self.first), np.int32(self.filled)
        with jax.set_mesh(self.mesh):
            logits, self.cache = _append(self.design, self.params, self.tables, self.cache, *given)
        self.filled += 1
        self._take(logits)

    def select(self, rows: NDArray[np.integer]) -> None:
        chosen = np.asarray(rows, np.int32)
        self.num_rows, self.first, self._logits = len(chosen), self.first[chosen], self._logits[chosen]
        self.chosen = chosen if self.chosen is None else self.chosen[chosen]

    def _prefill(self, prompts: Sequence[NDArray[np.integer]]) -> None:
        tokens = np.zeros((self.num_rows, self.filled), np.int32)
        for row, (first, prompt) in enumerate(zip(self.first, prompts, strict=True)):
            tokens[row, first:] = prompt
        given = self._put(tokens), self._put(self.first)
        with jax.set_mesh(self.mesh):
            logits, self.cache = _first_pass(self.design, self.slots, self.params, self.tables, *given)
        self._take(logits)

    def _apply_selection(self) -> None:
        """What any process has selected since the last pass."""
        most, changed = largest(self.mesh, self.num_rows, self.chosen is not None)
        if not changed:
            return
        chosen = np.arange(self.num_rows, dtype=np.int32) if self.chosen is None else self.chosen
        self.chosen = None
        before, self.size = self.size, self._size(most)
        if not self.size:
            self.cache = []
            return
        rows = self._put(chosen + before * first_reader(self.mesh))
        with jax.set_mesh(self.mesh):
            self.cache = _selected(self.cache, rows)

    def _size(self, most: int) -> int:
        """Rows that every process gives to a pass where the largest gives `most`; its devices get equal parts."""
        return math.ceil(power_of_two(most) / rows_multiple(self.mesh)) * rows_multiple(self.mesh) if most else 0

    def _put(self, rows: NDArray[Any]) -> Array:
        """Filled up, on this process' devices."""
        filling = [(0, self.size - len(rows)), *[(0, 0)] * (rows.ndim - 1)]
        return put_rows(np.pad(rows, filling), self.mesh, axis=0)

    def _take(self, logits: Array) -> None:
        self._logits = own_rows(logits, axis=0)[: self.num_rows]


def power_of_two(size: int) -> int:
    """The smallest power of two that is at least this size."""
    return 1 << (size - 1).bit_length()


@partial(jax.jit, static_argnums=(0, 1))
def _first_pass(
    design: Design, slots: int, params: Params, tables: Rotations, tokens: Array, first: Array
) -> tuple[Array, KVCache]:
    """Logits after the last slot, and the keys and values of all prompts."""
    model, length = design.decoder(params), tokens.shape[1]
    at = jnp.arange(length) - first[:, None]
    segments = jnp.where(at < 0, PADDING, 0)
    cache: KVCache = []

    def keep(queries: Array, keys: Array, values: Array, *, how: AttentionSpec) -> Array:
        size = min(slots, how.window or slots)
        cache.append((_last_slots(keys, size), _last_slots(values, size)))
        return attend(queries, keys, values, segments, how=how)

    hidden = model(tokens, tables.at(jnp.maximum(at, 0)), keep)
    return _logits(design, hidden[:, -1], model.lm_head), cache


@partial(jax.jit, static_argnums=0, donate_argnums=3)
def _append(
    design: Design, params: Params, tables: Rotations, cache: KVCache, tokens: Array, first: Array, here: Array
) -> tuple[Array, KVCache]:
    """Logits after one more token of each row, which is in the slot `here` from now on."""
    model = design.decoder(params)
    kept = iter(cache)
    filled: KVCache = []

    def ask(queries: Array, keys: Array, values: Array, *, how: AttentionSpec) -> Array:
        old_keys, old_values = next(kept)
        rows, size, kv_heads, head_dim = old_keys.shape
        all_keys, all_values = (
            keep_heads(lax.dynamic_update_slice_in_dim(old, new, here % size, axis=1))
            for old, new in ((old_keys, keys), (old_values, values))
        )
        filled.append((all_keys, all_values))
        grouped = queries.reshape(rows, kv_heads, -1, head_dim) * score_scale(how, head_dim)
        scores = jnp.einsum("rkgd,rskd->rkgs", grouped, all_keys, preferred_element_type=jnp.float32)
        scores = capped(scores, how.softcap)
        slot = here - (here - jnp.arange(size)) % size  # the last that is in each place; below 0 where none is
        sees = slot >= first[:, None]
        shares = nn.softmax(jnp.where(sees[:, None, None], scores, UNSEEN), axis=-1).astype(values.dtype)
        return jnp.einsum("rkgs,rskd->rkgd", shares, all_values).reshape(queries.shape)

    hidden = model(tokens[:, None], tables.at((here - first)[:, None]), ask)
    return _logits(design, hidden[:, -1], model.lm_head), filled


@partial(jax.jit, static_argnums=0)
def whole_row_logits(
    design: Design, params: Params, tokens: Array, positions: Array, documents: Array, ends: Array
) -> Array:
    """Logits (rows, vocab) of what follows each row's slot `ends`, by a model of the user's own."""
    model = design.own_model(params)
    hidden = model(tokens, positions, documents)
    return _logits(design, hidden[jnp.arange(len(ends)), ends], model.lm_head)


@jax.jit
def _selected(cache: KVCache, rows: Array) -> KVCache:
    return jax.tree.map(lambda part: keep_heads(part[rows]), cache)


@partial(jax.jit, static_argnums=1)
def _wider(cache: KVCache, slots: tuple[int, ...]) -> KVCache:
    """Room for as many slots in each layer; nothing that has begun to go round is made wider."""
    return [
        (_last_slots(keys, size), _last_slots(values, size)) for (keys, values), size in zip(cache, slots, strict=True)
    ]


def _slots_kept(spec: ModelSpec, slots: int) -> tuple[int, ...]:
    """Of each layer, where rows have this many."""
    return tuple(min(slots, spec.attention_of(layer).window or slots) for layer in range(spec.layers))


def _last_slots(part: Array, size: int) -> Array:
    """Keys or values (rows, slots, ...) in as many places, slot s in place s modulo these."""
    slots = part.shape[1]
    if slots <= size:
        return keep_heads(jnp.pad(part, [(0, 0), (0, size - slots), (0, 0), (0, 0)]))
    return keep_heads(jnp.roll(part[:, slots - size :], slots - size, axis=1))


def _logits(design: Design, hidden: Array, matrix: Array) -> Array:
    """Float32, without the padded vocabulary."""
    used = matrix[: design.spec.vocab].astype(hidden.dtype)
    products = jnp.einsum("rw,vw->rv", hidden, used, preferred_element_type=jnp.float32)
    return keep_rows(LogitForm.of(design.spec).logits(products))

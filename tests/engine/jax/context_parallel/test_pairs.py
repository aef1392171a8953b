"""Blocks of queries and keys that devices share: all that is seen is computed once, and equally much by each."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import Array

from tests.engine.jax.plain import LENGTHS, plain
from tests.support.batches import make_batch
from trivium.engine.jax.context_parallel.context import MAX_BLOCK, head_tail, shared_slots
from trivium.engine.jax.context_parallel.pairs import attend_pairs, blocks_back, pairs_of, stored_places
from trivium.model.spec import AttentionSpec

CONTEXT, BLOCKS, SIZE = 2, 4, 10  # rows of 160 slots, in blocks of ten


@given(st.integers(1, 6), st.integers(1, 5))
def test_every_pair_that_is_seen_is_computed_once_and_equally_many_by_each_device(context: int, blocks: int) -> None:
    places, seen = stored_places(blocks, context), []
    for device in range(context):
        found = pairs_of(device, blocks, context)
        assert len(found.query) == blocks * (2 * context * blocks + 1)
        assert np.array_equal(places[device * 2 * blocks + np.asarray(found.query)], found.query_place)
        assert np.array_equal(places[np.asarray(found.key)], found.key_place)
        seen += [*zip(found.query_place.tolist(), found.key_place.tolist(), strict=True)]
    assert sorted(seen) == [(query, key) for query in range(2 * context * blocks) for key in range(query + 1)]


@given(st.integers(1, 5), st.integers(1, 4), st.integers(1, 60), st.integers(1, 7))
def test_every_pair_that_a_window_reaches_is_computed_once_and_no_other(
    context: int, blocks: int, window: int, size: int
) -> None:
    reach, seen, turns = blocks_back(window, size), [], set()
    for device in range(context):
        found = pairs_of(device, blocks, context, reach)
        turns.add(len(found.query))
        pairs = [*zip(found.query_place.tolist(), found.key_place.tolist(), strict=True)]
        seen += [(query, key) for query, key in pairs if key <= query]  # a turn without a pair sees nothing
    assert len(turns) == 1
    nearest = [
        (query, key, max(0, (query - key - 1) * size + 1))
        for query in range(2 * context * blocks)
        for key in range(query + 1)
    ]
    assert sorted(seen) == [(query, key) for query, key, slots in nearest if slots < window]


@given(st.integers(1, 20_000), st.integers(1, 16))
def test_slots_are_shared_evenly_and_none_is_lost(seq_len: int, context: int) -> None:
    slots = shared_slots(seq_len, context)
    order = head_tail(slots, context)
    assert np.array_equal(np.sort(order), np.arange(slots))
    assert seq_len <= slots < seq_len + 2 * context * (seq_len // (2 * context * MAX_BLOCK) + 1)
    assert slots % context == 0


def test_a_device_has_a_stretch_from_the_start_and_one_from_the_end() -> None:
    assert head_tail(8, 2).tolist() == [0, 1, 6, 7, 2, 3, 4, 5]
    assert [shared_slots(8, 1), shared_slots(9, 2), shared_slots(5 * 4 * MAX_BLOCK + 1, 2)] == [8, 12, 10_248]


@pytest.mark.slow
@pytest.mark.parametrize("how", [AttentionSpec(), AttentionSpec(23, 0.2, 1.5), AttentionSpec(1)])
@pytest.mark.parametrize("documents", ["masked", "joined"])
def test_all_devices_together_gather_what_the_whole_square_does(documents: str, how: AttentionSpec) -> None:
    segments = make_batch(LENGTHS, seq_len=160).segments
    if documents == "joined":
        segments = np.zeros_like(segments)
    random = np.random.default_rng(0)
    arrays = [random.standard_normal((3, 160, heads, 8)).astype(np.float32) for heads in (4, 2, 2)]
    outer = random.standard_normal(arrays[0].shape).astype(np.float32)
    order = head_tail(160, CONTEXT)

    def shared(queries: Array, keys: Array, values: Array) -> Array:
        """By one device after the other."""

        def in_blocks(array: Array) -> Array:
            cut = array[:, order].reshape(3, -1, SIZE, 2, array.shape[2] // 2, 8)
            return cut.transpose(1, 0, 3, 4, 2, 5)

        asked, numbers = (
            in_blocks(queries * (how.scale or 8**-0.5)),
            jnp.asarray(segments[:, order].reshape(3, -1, SIZE)),
        )
        of_all, parts = numbers.transpose(1, 0, 2), []
        for device in range(CONTEXT):
            own = slice(device * 2 * BLOCKS, (device + 1) * 2 * BLOCKS)
            pairs = pairs_of(device, BLOCKS, CONTEXT, blocks_back(how.window, SIZE))
            seen = in_blocks(keys)[:, :, :, 0], in_blocks(values)[:, :, :, 0]
            parts.append(attend_pairs(asked[own], *seen, of_all, of_all[own], pairs, how))
        gathered = jnp.concatenate(parts).transpose(1, 0, 4, 2, 3, 5).reshape(queries.shape)
        return gathered[:, np.argsort(order)]

    def whole(queries: Array, keys: Array, values: Array) -> Array:
        return plain(queries, keys, values, jnp.asarray(segments), how)

    for_both = []
    for function in (shared, whole):
        gathered, back = jax.vjp(jax.jit(function), *arrays)
        for_both.append([gathered, *back(outer)])
    for ours, theirs in zip(*for_both, strict=True):
        assert np.asarray(ours) == pytest.approx(np.asarray(theirs), abs=1e-5)

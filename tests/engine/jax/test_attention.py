"""Attention in blocks against the plain formula: what is gathered, and its gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

from tests.engine.jax.plain import LENGTHS, plain
from tests.support.batches import make_batch
from trivium.engine.jax.attention import Attend, attend

pytestmark = pytest.mark.slow  # programs are compiled


@pytest.mark.parametrize("row_by_row", [False, True])
@pytest.mark.parametrize("documents", ["masked", "joined"])
def test_blocks_gather_what_the_whole_square_does(documents: str, row_by_row: bool) -> None:
    segments = make_batch(LENGTHS, seq_len=160).segments
    random = np.random.default_rng(0)
    arrays = [random.standard_normal((3, 160, heads, 8)).astype(np.float32) for heads in (4, 2, 2)]
    outer = random.standard_normal(arrays[0].shape).astype(np.float32)
    if documents == "joined":
        segments = np.zeros_like(segments)

    def blocked(queries: Array, keys: Array, values: Array) -> Array:
        kept_apart = None if documents == "joined" else jnp.asarray(segments)
        return attend(queries, keys, values, kept_apart, row_by_row)

    def whole(queries: Array, keys: Array, values: Array) -> Array:
        return plain(queries, keys, values, jnp.asarray(segments))

    def gathered_and_gradients(function: Attend) -> list[Array]:
        gathered, back = jax.vjp(function, *arrays)
        return [gathered, *back(outer)]

    found = jax.jit(lambda: gathered_and_gradients(blocked))()
    expected = jax.jit(lambda: gathered_and_gradients(whole))()
    for ours, theirs in zip(found, expected, strict=True):
        assert np.asarray(ours) == pytest.approx(np.asarray(theirs), abs=1e-5)

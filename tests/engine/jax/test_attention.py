"""Attention in blocks against the plain formula: what is gathered, and its gradients."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

from tests.engine.jax.plain import LENGTHS, plain
from tests.support.batches import make_batch
from trivium.engine.jax import attention
from trivium.engine.jax.attention import Attend, attend
from trivium.model.spec import AttentionSpec

pytestmark = pytest.mark.slow  # programs are compiled


@pytest.mark.parametrize("row_by_row", [False, True])
@pytest.mark.parametrize("documents", ["masked", "joined"])
def test_blocks_gather_what_the_whole_square_does(documents: str, row_by_row: bool) -> None:
    refuse_other_gradients(documents, row_by_row, AttentionSpec())


@pytest.mark.parametrize("documents", ["masked", "joined"])
@pytest.mark.parametrize("how", [AttentionSpec(scale=0.2), AttentionSpec(softcap=1.5), AttentionSpec(12, 0.2, 1.5)])
def test_scores_may_be_scaled_capped_and_within_a_window(documents: str, how: AttentionSpec) -> None:
    refuse_other_gradients(documents, True, how)


@pytest.mark.parametrize(("window", "row_by_row"), [(1, False), (2, True), (12, True), (50, False), (70, True)])
def test_a_row_is_cut_into_stretches_where_a_window_is_short(
    window: int, row_by_row: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "MIN_STRETCH", 30)
    monkeypatch.setattr(attention, "MIN_BLOCK", 4)
    refuse_other_gradients("masked", row_by_row, AttentionSpec(window, softcap=1.5))


def test_a_query_meets_its_window_and_its_block_however_long_the_row() -> None:
    def flops(seq_len: int, window: int | None) -> float:
        shape = jax.ShapeDtypeStruct((1, seq_len, 1, 8), jnp.float32)
        slides = jax.jit(partial(attend, how=AttentionSpec(window)))
        cost = slides.lower(shape, shape, shape).cost_analysis()
        assert cost is not None
        return float(cost["flops"]) / seq_len

    assert flops(8192, 128) == pytest.approx(flops(2048, 128), rel=0.05)
    assert flops(2048, 128) < flops(2048, None) / 5
    assert flops(8192, None) > 3.5 * flops(2048, None)


def refuse_other_gradients(documents: str, row_by_row: bool, how: AttentionSpec) -> None:
    segments = make_batch(LENGTHS, seq_len=160).segments
    random = np.random.default_rng(0)
    arrays = [random.standard_normal((3, 160, heads, 8)).astype(np.float32) for heads in (4, 2, 2)]
    outer = random.standard_normal(arrays[0].shape).astype(np.float32)
    if documents == "joined":
        segments = np.zeros_like(segments)

    def blocked(queries: Array, keys: Array, values: Array) -> Array:
        kept_apart = None if documents == "joined" else jnp.asarray(segments)
        return attend(queries, keys, values, kept_apart, row_by_row, how)

    def whole(queries: Array, keys: Array, values: Array) -> Array:
        return plain(queries, keys, values, jnp.asarray(segments), how)

    def gathered_and_gradients(function: Attend) -> list[Array]:
        gathered, back = jax.vjp(function, *arrays)
        return [gathered, *back(outer)]

    found = jax.jit(lambda: gathered_and_gradients(blocked))()
    expected = jax.jit(lambda: gathered_and_gradients(whole))()
    for ours, theirs in zip(found, expected, strict=True):
        assert np.asarray(ours) == pytest.approx(np.asarray(theirs), abs=1e-5)

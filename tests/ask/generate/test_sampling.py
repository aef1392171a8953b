import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from trivium.ask.generate.sampling import FIRST_LOOKED_AT, GREEDY, Sampling, choose, draws_of, row_key

LOGITS = np.log(np.array([[0.1, 0.4, 0.05, 0.3, 0.15]], np.float32))


def chosen(how: Sampling, count: int = 1001) -> dict[int, float]:
    """How often each token comes, over draws that lie evenly in [0, 1)."""
    draws = (np.arange(count) + 0.5) / count
    tokens = choose(np.repeat(LOGITS, count, axis=0), draws, how)
    return {int(token): (tokens == token).mean() for token in np.unique(tokens)}


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        (GREEDY, {1: 1.0}),
        (Sampling(), {0: 0.1, 1: 0.4, 2: 0.05, 3: 0.3, 4: 0.15}),
        (Sampling(temperature=0.5), {0: 0.01, 1: 0.16, 2: 0.0025, 3: 0.09, 4: 0.0225}),
        (Sampling(top_k=2), {1: 4, 3: 3}),
        (Sampling(top_k=9), {0: 0.1, 1: 0.4, 2: 0.05, 3: 0.3, 4: 0.15}),
        (Sampling(top_p=0.3), {1: 1}),
        (Sampling(top_p=0.69), {1: 4, 3: 3}),
        (Sampling(top_p=0.8), {1: 0.4, 3: 0.3, 4: 0.15}),
        (Sampling(top_k=3, top_p=0.5), {1: 4, 3: 3}),
        (Sampling(top_p=1.0), {0: 0.1, 1: 0.4, 2: 0.05, 3: 0.3, 4: 0.15}),
    ],
    ids=str,
)
def test_tokens_come_as_often_as_they_are_likely(how: Sampling, expected: dict[int, float]) -> None:
    total = sum(expected.values())
    assert chosen(how) == pytest.approx({token: share / total for token, share in expected.items()}, abs=2e-3)


def nucleus(logits: NDArray[np.float32], top_p: float) -> set[int]:
    """By sorting all of it."""
    weights = np.exp(logits - logits.max())
    falling = np.argsort(-weights, kind="stable")
    enough = np.searchsorted(np.cumsum(weights[falling], dtype=np.float64), top_p * weights.sum(dtype=np.float64)) + 1
    return set(falling[:enough].tolist())


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**32), st.sampled_from([0.1, 3.0]), st.floats(0.05, 0.99))
def test_a_nucleus_of_a_large_vocabulary_is_the_same_as_by_sorting(seed: int, spread: float, top_p: float) -> None:
    logits = np.random.default_rng(seed).normal(0, spread, 3 * FIRST_LOOKED_AT).astype(np.float32)
    draws = np.linspace(0, 1, 200, endpoint=False)
    tokens = set(choose(np.repeat(logits[None], 200, axis=0), draws, Sampling(top_p=top_p)).tolist())
    assert tokens <= nucleus(logits, top_p)


def test_a_draw_belongs_to_a_row_and_a_place() -> None:
    keys = [row_key(7, prompt, sample) for prompt in range(3) for sample in range(2)]
    together = draws_of(keys, [5] * 6)
    alone = np.concatenate([draws_of([key], [5]) for key in keys])
    assert (together == alone).all()
    assert len(set(together.tolist())) == 6
    assert draws_of([keys[0]], [6]) != draws_of([keys[0]], [5])
    assert row_key(8, 0, 0) != keys[0]


def test_draws_lie_evenly() -> None:
    draws = draws_of([row_key(0, 0, 0)] * 2000, list(range(2000)))
    assert (draws >= 0).all()
    assert (draws < 1).all()
    assert np.histogram(draws, 10, (0, 1))[0] == pytest.approx(200, abs=60)

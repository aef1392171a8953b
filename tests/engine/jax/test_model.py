"""Models and losses of one's own in JAX: the decoder's numbers where they are the decoder's, refusals where not."""

from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest
from flax import nnx
from jax import Array

from tests.engine.own import OwnContract
from tests.support.batches import TINY
from tests.support.own_jax import Small, nats
from trivium.engine.base import Engine, EngineSettings, LossBatch, Recompute
from trivium.engine.jax.attention import attend
from trivium.engine.jax.engine import JaxEngine
from trivium.engine.jax.layers import Layer, Linear, RMSNorm, Rotation
from trivium.engine.jax.model import recomputed
from trivium.errors import UsageError
from trivium.model.rotary import rotary_tables
from trivium.model.spec import ModelSpec

pytestmark = pytest.mark.slow  # programs are compiled


class OwnDecoder(nnx.Module):
    """The built-in decoder, from tokens, positions and documents."""

    def __init__(self, spec: ModelSpec) -> None:
        self.spec = spec
        self.embedding = Linear(spec.width, spec.padded_vocab)
        self.layers = nnx.List([Layer(spec, has_rope=True) for _ in range(spec.layers)])
        self.norm = RMSNorm(spec.width, spec.norm_eps)
        self.unembedding = Linear(spec.width, spec.padded_vocab)

    @property
    def lm_head(self) -> Any:
        return self.unembedding

    def __call__(self, tokens: Array, positions: Array, documents: Array) -> Array:
        table = Rotation(*map(jnp.asarray, rotary_tables(self.spec.rope, self.spec.head_dim, 64)))

        def attends(queries: Array, keys: Array, values: Array) -> Array:
            return attend(queries, keys, values, documents)

        x = self.embedding.weight[...][tokens]
        for layer in self.layers:
            x = layer(x, table.at(positions), attends)
        return self.norm(x)


class Drawn(OwnDecoder):
    def init_weight(self, name: str, shape: tuple[int, ...], key: Array) -> Array | None:
        assert jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
        return jnp.zeros(shape) if name == "norm.weight" else None


def smoothed(hidden: Array, lm_head: Array, batch: LossBatch) -> Array:
    labels = 0.5 * (batch.targets[:, None] == jnp.arange(TINY.vocab)) + 0.5 / TINY.vocab
    return optax.softmax_cross_entropy(hidden @ lm_head.T, labels)


def test_a_layers_backward_pass_computes_again_what_is_not_kept() -> None:
    rotation = Rotation(*map(jnp.asarray, rotary_tables(TINY.rope, TINY.head_dim, 16)))
    definition, shapes = nnx.split(nnx.eval_shape(lambda: Layer(TINY, has_rope=True)))
    state = jax.tree.map(lambda part: jnp.ones(part.shape), shapes)

    def products(recompute: Recompute) -> int:
        def run(state: Any, x: Array) -> Array:
            return recomputed(lambda x: nnx.merge(definition, state)(x, rotation, attend), recompute)(x).sum()

        return str(jax.make_jaxpr(jax.grad(run))(state, jnp.ones((2, 16, TINY.width)))).count("dot_general")

    assert products("selective") == products("none")
    assert products("full") == products("none") + 6 + 2  # all matrices but the last, and attention


class TestJaxOwn(OwnContract):
    decoder = OwnDecoder
    drawn = Drawn
    nats = staticmethod(nats)
    smoothed = staticmethod(smoothed)

    def make(self, settings: EngineSettings) -> Engine:
        return JaxEngine(settings)


class Bare(nnx.Module):
    """Has nothing that the engine asks for, and keeps what it may not keep."""

    def __init__(self, spec: ModelSpec) -> None:
        self.dropout = nnx.Dropout(0.5, rngs=nnx.Rngs(0))


class Dropping(Small):
    """Has a Dropout without a key."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(spec)
        self.dropout = nnx.Dropout(0.5)


class Empty(Small):
    """Has no layer in its list."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(spec)
        self.layers = nnx.List([])


class Cut(Small):
    """Hidden states are narrower than the lm_head."""

    def __call__(self, *inputs: Array) -> Array:
        return super().__call__(*inputs)[..., :5]


class Transposed(Small):
    """Its lm_head has the vocabulary last."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(spec)
        self.lm_head = nnx.Param(jnp.zeros((spec.width, spec.vocab)))


@pytest.mark.parametrize(
    ("model", "what"),
    [
        (Bare, "made a Bare, which has no layers (an nnx.List); has no lm_head (the weight from hidden states to"),
        (Bare, "; keeps RngCount, RngKey: only nnx.Param is kept from step to step"),
        (Dropping, "which has an nnx.Dropout, and the JAX engine's steps draw no random numbers: leave it out."),
        (Empty, "made a Empty, which has an empty list of layers: put one module or more in it."),
        (Cut, "made a Cut, which returned (1, 2, 5) where hidden states (1, 2, 32) are expected: rows, slots, the lm"),
        (Transposed, "which has an lm_head of (32, 50): it must have 50 to 128 rows and the width of the hidden"),
    ],
)
def test_a_model_that_does_not_fit_is_refused(model: Any, what: str) -> None:
    with pytest.raises(UsageError) as refusal:
        JaxEngine(EngineSettings(TINY, device="cpu", make_model=model))
    assert what in str(refusal.value)
    assert str(refusal.value).endswith(". docs/trainer.md has what a model needs.")

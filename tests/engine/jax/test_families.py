"""Models of every family, made by transformers itself: read, packed, trained and written by the JAX engine."""

from pathlib import Path

import jax
import numpy as np
import pytest
import torch
from jax import Array
from numpy.typing import NDArray

from tests.support.batches import make_batch, settings_at
from tests.support.families import SEQ_LEN, VOCAB, their_logits, their_model
from trivium.engine.base import EngineSettings, StageSettings
from trivium.engine.jax.attention import attend
from trivium.engine.jax.engine import JaxEngine
from trivium.engine.jax.layers import Rotations
from trivium.engine.jax.loss import LogitForm
from trivium.engine.jax.model import Params
from trivium.model.folder import read_spec
from trivium.model.spec import AttentionSpec
from trivium.rows.batch import Batch

pytestmark = pytest.mark.slow  # programs are compiled

FAMILIES = [
    "mistral",
    "qwen2",
    "qwen3, sliding",
    "smollm3, sliding",
    "olmo2",
    "olmo3, stretched",
    "apertus",
    "gemma2",
    "gemma3_text, stretched",
]


def our_logits(engine: JaxEngine, *batches: Batch) -> list[NDArray[np.float32]]:
    """(B, T, vocab) after every slot."""

    @jax.jit
    def logits(params: Params, tables: Rotations, tokens: Array, positions: Array, segments: Array) -> Array:
        def masked(queries: Array, keys: Array, values: Array, *, how: AttentionSpec) -> Array:
            return attend(queries, keys, values, segments, how=how)

        model = engine.design.decoder(params)
        products = model(tokens, tables.at(positions), masked) @ model.lm_head[:VOCAB].T
        return LogitForm.of(engine.settings.spec).logits(products)

    given = ((batch.tokens, batch.positions, batch.segments) for batch in batches)
    return [np.asarray(logits(engine.state.params, engine.rotations, *each)) for each in given]


def difference(ours: NDArray[np.float32], theirs: torch.Tensor) -> float:
    """The largest, against the largest logit."""
    return float(np.abs(ours - theirs.numpy()).max() / np.abs(theirs.numpy()).max())


@pytest.mark.parametrize("name", FAMILIES)
def test_a_model_of_theirs_is_read_packed_trained_and_written(name: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    theirs = their_model(name)
    theirs.save_pretrained(tmp_path / "theirs")
    engine = JaxEngine(EngineSettings(read_spec(tmp_path / "theirs"), device="cpu"))
    engine.start_from(tmp_path / "theirs")
    engine.enter(StageSettings(SEQ_LEN))
    row, packed = (make_batch((lengths,), seq_len=SEQ_LEN, vocab=VOCAB) for lengths in ((SEQ_LEN,), (17, 23)))
    parts = (packed.tokens[:, :17], packed.tokens[:, 17:])
    expected = their_logits(theirs, row.tokens), torch.cat([their_logits(theirs, part) for part in parts], 1)
    for ours, wanted in zip(our_logits(engine, row, packed), expected, strict=True):
        assert difference(ours, wanted) < 1e-5

    for step in range(2):
        assert np.isfinite(engine.step(packed, settings_at(step)).loss)
    engine.export(tmp_path / "ours")
    assert read_spec(tmp_path / "ours") == engine.settings.spec
    again = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "ours", dtype=torch.float32, attn_implementation="eager"
    ).eval()
    (ours,) = our_logits(engine, row)
    assert difference(ours, their_logits(again, row.tokens)) < 1e-5

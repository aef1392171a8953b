"""Rotary frequencies are those of the models that others publish."""

import json
import tempfile
from pathlib import Path

import numpy as np
import pytest

from trivium.model.huggingface import write_config
from trivium.model.rotary import rotary_frequencies, rotary_tables
from trivium.model.spec import ModelSpec, RopeSpec

HEAD_DIM = 64
SPEC = ModelSpec(layers=1, width=256, heads=4, kv_heads=4, head_dim=HEAD_DIM, ffn=512, vocab=256, max_seq_len=8192)
SCALED = [
    RopeSpec(theta=500_000.0),
    RopeSpec(scaling="linear", factor=4.0, original_seq_len=2048),
    RopeSpec(scaling="yarn", factor=4.0, original_seq_len=2048),
    RopeSpec(theta=1e6, scaling="yarn", factor=16.0, original_seq_len=4096, beta_fast=16.0, beta_slow=2.0),
    RopeSpec(theta=1e4, scaling="yarn", factor=8.0, original_seq_len=4096, attention_factor=1.5),
    RopeSpec(theta=5e5, scaling="ntk-by-parts", factor=8.0, original_seq_len=4096, beta_fast=24.0),
    RopeSpec(theta=500_000.0, scaling="llama3", factor=8.0, original_seq_len=8192),
    RopeSpec(theta=500_000.0, scaling="llama3", factor=32.0, original_seq_len=8192, high_freq_factor=8.0),
]


def test_plain_frequencies_fall_from_one_to_one_over_the_base() -> None:
    frequencies, magnitude = rotary_frequencies(RopeSpec(theta=10_000.0), HEAD_DIM)
    np.testing.assert_allclose(frequencies, 10_000.0 ** -(np.arange(32) / 32), rtol=1e-6)
    assert magnitude == 1.0


def test_tables_hold_every_position() -> None:
    cos, sin = rotary_tables(RopeSpec(), HEAD_DIM, 100)
    assert cos.shape == sin.shape == (100, 32)
    assert cos.dtype == sin.dtype == np.float32
    np.testing.assert_allclose(cos**2 + sin**2, 1, rtol=1e-6)


def test_yarn_stretches_slow_pairs_and_leaves_fast_ones() -> None:
    plain, _ = rotary_frequencies(RopeSpec(), HEAD_DIM)
    stretched, magnitude = rotary_frequencies(RopeSpec(scaling="yarn", factor=4.0, original_seq_len=2048), HEAD_DIM)
    assert stretched[0] == plain[0]
    assert stretched[-1] == pytest.approx(plain[-1] / 4)
    assert magnitude == pytest.approx(1 + 0.1 * np.log(4))


@pytest.mark.parametrize("rope", SCALED, ids=lambda rope: f"{rope.scaling}-{rope.factor}")
def test_frequencies_are_those_of_transformers(rope: RopeSpec) -> None:
    transformers = pytest.importorskip("transformers")
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    with tempfile.TemporaryDirectory() as folder:
        write_config(Path(folder), SPEC, rope, 8192)
        written = json.loads((Path(folder) / "config.json").read_text())
    theirs = written["rope_scaling"] or {"rope_type": "default", "rope_theta": written["rope_theta"]}
    kind = theirs["rope_type"]
    config = transformers.LlamaConfig(
        hidden_size=4 * HEAD_DIM, num_attention_heads=4, rope_parameters=theirs, max_position_embeddings=8192
    )
    ours, magnitude = rotary_frequencies(rope, HEAD_DIM)
    if rope.scaling is None:
        expected, scale = transformers.models.llama.modeling_llama.LlamaRotaryEmbedding(config).inv_freq, 1.0
    else:
        expected, scale = ROPE_INIT_FUNCTIONS[kind](config)
    np.testing.assert_allclose(ours, expected.numpy(), rtol=1e-6)
    assert magnitude == pytest.approx(scale)

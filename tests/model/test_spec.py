"""A config's sizes -> shapes, parameters and work."""

import pytest

from trivium.config.schema import SIZES, Model
from trivium.config.stages import Rope
from trivium.model.spec import ModelSpec, RopeSpec, model_spec, rope_spec

MILLION = 1e6
NAMED = {"10m": 10, "60m": 60, "125m": 125, "350m": 350, "760m": 760, "1b": 1e3, "3b": 3e3, "8b": 8e3, "70b": 70e3}


def test_a_width_alone_gives_heads_of_64_and_a_feed_forward_of_eight_thirds() -> None:
    spec = model_spec(Model(layers=6, width=256), vocab=8192, longest_row=512)
    assert spec == ModelSpec(
        layers=6, width=256, heads=4, kv_heads=4, head_dim=64, ffn=704, vocab=8192, max_seq_len=512
    )


def test_what_is_said_is_kept() -> None:
    model = Model(
        layers=2, width=64, heads=4, kv_heads=2, ffn=100, vocab=300, max_seq_len=99, tied_embeddings=True, qk_norm=True
    )
    spec = model_spec(model, vocab=256, longest_row=512)
    assert (spec.heads, spec.kv_heads, spec.head_dim, spec.ffn) == (4, 2, 16, 100)
    assert (spec.vocab, spec.padded_vocab, spec.max_seq_len) == (300, 384, 99)
    assert spec.tied_embeddings
    assert spec.qk_norm


@pytest.mark.parametrize("name", NAMED)
def test_a_size_has_the_parameters_of_its_name(name: str) -> None:
    spec = model_spec(Model(size=name), vocab=8192 if name == "10m" else 32_768, longest_row=2048)
    assert spec.parameters / MILLION == pytest.approx(NAMED[name], rel=0.15)


def test_every_size_divides_into_even_heads() -> None:
    for size in SIZES.values():
        assert size.width % size.heads == 0
        assert size.width // size.heads % 2 == 0
        assert size.heads % size.kv_heads == 0


def test_parameters_are_counted_without_padding() -> None:
    # By hand: 2 x (4 x 8 x 8 + 3 x 8 x 16 + 2 x 8) + 8 + 2 x 10 x 8
    spec = ModelSpec(layers=2, width=8, heads=2, kv_heads=2, head_dim=4, ffn=16, vocab=10, max_seq_len=4)
    assert spec.parameters == 2 * (256 + 384 + 16) + 8 + 160


def test_flops_count_matrices_and_every_key_of_the_row() -> None:
    spec = ModelSpec(layers=2, width=8, heads=2, kv_heads=2, head_dim=4, ffn=16, vocab=10, max_seq_len=4)
    matrices = 2 * (256 + 384) + 80
    assert spec.forward_flops(keys=0) == 2 * matrices
    assert spec.flops(seq_len=100) == 6 * matrices + 12 * 2 * 8 * 100


def test_a_stage_takes_the_models_base_and_gives_its_own_scaling() -> None:
    own = RopeSpec(theta=5e5, scaling="llama3", factor=8.0, original_seq_len=8192)
    assert rope_spec(None, own, 1024) == own
    assert rope_spec(Rope(theta=1e6), own, 1024) == RopeSpec(1e6, original_seq_len=8192)
    stretched = rope_spec(Rope(scaling="yarn", factor=4.0), RopeSpec(), 1024)
    assert stretched == RopeSpec(scaling="yarn", factor=4.0, original_seq_len=1024)

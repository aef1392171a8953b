"""A decoder's shape -> parameters and work, and what decides its rotary positions."""

import json
from dataclasses import asdict, fields, replace
from typing import Any

import numpy as np
import pytest

from trivium.model.rotary import rotary_tables
from trivium.model.spec import ModelSpec, RopeSpec


def test_parameters_are_counted_without_padding() -> None:
    # By hand: 2 x (4 x 8 x 8 + 3 x 8 x 16 + 2 x 8) + 8 + 2 x 10 x 8
    spec = ModelSpec(layers=2, width=8, heads=2, kv_heads=2, head_dim=4, ffn=16, vocab=10, max_seq_len=4)
    assert spec.parameters == 2 * (256 + 384 + 16) + 8 + 160


def test_flops_count_matrices_and_every_key_of_the_row() -> None:
    spec = ModelSpec(layers=2, width=8, heads=2, kv_heads=2, head_dim=4, ffn=16, vocab=10, max_seq_len=4)
    matrices = 2 * (256 + 384) + 80
    assert spec.forward_flops(keys=0) == 2 * matrices
    assert spec.flops(seq_len=100) == 6 * matrices + 12 * 2 * 8 * 100


@pytest.mark.parametrize("scaling", [None, "linear", "ntk-by-parts", "yarn", "llama3"])
def test_the_deciding_fields_are_those_that_change_the_rotary_table(scaling: str | None) -> None:
    rope = RopeSpec(scaling=scaling, factor=4.0, original_seq_len=2048)  # type: ignore[arg-type]
    before = rotary_tables(rope, 64, 4096)
    other: dict[str, Any] = {
        "theta": 5e5,
        "factor": 8.0,
        "original_seq_len": 512,
        "attention_factor": 1.5,
        "beta_fast": 16.0,
    }
    other |= {"beta_slow": 4.0, "low_freq_factor": 2.0, "high_freq_factor": 8.0}
    for name in {field.name for field in fields(rope)} - {"scaling", "dropped", "sliding"}:
        changed = replace(rope, **{name: other[name]})
        same = all(np.array_equal(*pair) for pair in zip(before, rotary_tables(changed, 64, 4096), strict=True))
        assert same == (changed.deciding() == rope.deciding()), name


def test_what_layers_slide_and_how_their_positions_are_stretched_crosses_plain_values() -> None:
    rope = RopeSpec(scaling="yarn", factor=8.0, original_seq_len=8192, sliding=RopeSpec(theta=5e5))
    spec = ModelSpec(4, 8, 2, 2, 4, 16, 10, 64, rope=rope, window=16, sliding=(0, 1, 2))
    assert ModelSpec.of(json.loads(json.dumps(asdict(spec)))) == spec
    assert rope.deciding()["sliding"] == {"theta": 5e5}
    assert [spec.attention_of(layer).window for layer in range(4)] == [16, 16, 16, None]


def test_flops_of_a_sliding_layer_count_its_window() -> None:
    spec = ModelSpec(4, 8, 2, 2, 4, 16, 10, 64, window=16, sliding=(0, 1, 2))
    assert spec.forward_flops(100) - spec.forward_flops(0) == 4 * 2 * 4 * (3 * 16 + 100)


def test_the_weights_of_other_layers_are_counted() -> None:
    spec = ModelSpec(2, 8, 2, 1, 4, 16, 10, 64, qk_norm=True, qk_norm_joint=True, qkv_bias=True, norm="both")
    assert spec.layer_vectors == 4 * 8 + (8 + 4) + (8 + 4 + 4)
    assert ModelSpec(2, 8, 2, 2, 4, 16, 10, 64, gated=False, activation="xielu").layer_vectors == 2 * 8 + 2

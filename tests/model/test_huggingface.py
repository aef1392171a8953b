"""config.json of every family, in the forms of transformers 4 and 5: read, refused, and written by the simplest one."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from trivium.errors import ConfigError, UsageError
from trivium.model.families.table import FAMILIES, family_of, no_family
from trivium.model.huggingface import read_spec, write_config
from trivium.model.spec import ModelSpec, RopeSpec

SPEC = ModelSpec(layers=4, width=32, heads=4, kv_heads=2, head_dim=8, ffn=64, vocab=50, max_seq_len=64)
YARN = RopeSpec(5e5, "yarn", 8.0, 16, attention_factor=1.2)
GEMMA: dict[str, Any] = {"norm": "both", "qk_norm": True, "activation": "gelu_tanh", "embedding_scale": 32**0.5}
OLMO: dict[str, Any] = {"norm": "after", "qk_norm": True, "qk_norm_joint": True}
WRITTEN: list[tuple[str, dict[str, Any]]] = [
    ("llama", {}),
    ("llama", {"activation": "gelu"}),
    ("mistral", {"window": 8, "sliding": (0, 1, 2, 3)}),
    ("qwen2", {"qkv_bias": True}),
    ("qwen2", {"qkv_bias": True, "window": 8, "sliding": (2, 3), "tied_embeddings": True}),
    ("qwen3", {"qk_norm": True, "window": 8, "sliding": (0, 2)}),
    ("smollm3", {"rope": RopeSpec(dropped=(1, 3))}),
    ("smollm3", {"rope": RopeSpec(dropped=(1,)), "window": 8, "sliding": (0, 1)}),
    ("smollm3", {"window": 8, "sliding": (0, 2)}),
    ("olmo2", OLMO | {"rope": YARN}),
    ("olmo3", OLMO | {"window": 8, "sliding": (0, 1, 2), "rope": replace(YARN, sliding=RopeSpec(5e5))}),
    ("olmo3", OLMO | {"window": 8, "sliding": (0,)}),
    ("apertus", {"qk_norm": True, "activation": "xielu", "gated": False, "rope": YARN}),
    ("apertus", {"qk_norm": True, "gated": False}),
    ("gemma2", {**GEMMA, "qk_norm": False, "attention_softcap": 5.0, "window": 8, "sliding": (0, 2)}),
    ("gemma2", {**GEMMA, "qk_norm": False}),
    ("gemma3_text", {**GEMMA, "attention_scale": 16**-0.5, "logit_softcap": 3.0, "window": 8, "sliding": (0, 1)}),
    ("gemma3_text", {**GEMMA, "window": 8, "sliding": (1,), "rope": replace(YARN, sliding=RopeSpec(1e4))}),
]


def write(folder: Path, family: str, **keys: Any) -> Path:
    """A config.json as others write them."""
    sizes = {
        "num_hidden_layers": 8,
        "hidden_size": 32,
        "num_attention_heads": 4,
        "intermediate_size": 64,
        "vocab_size": 50,
        "max_position_embeddings": 64,
        "rms_norm_eps": 1e-6,
    }
    path = folder / "config.json"
    path.write_text(json.dumps({"model_type": family} | sizes | keys))
    return path


@pytest.mark.parametrize(("family", "changes"), WRITTEN)
def test_a_model_is_written_as_the_simplest_family_and_read_back(
    family: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    spec = replace(SPEC, **changes)
    assert family_of(spec, spec.rope).name == family
    write_config(tmp_path, spec, spec.rope, 64)
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == family
    assert read_spec(tmp_path) == spec


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"logit_scale": 0.5}, "llama, the nearest, does not have logit_scale 0.5"),
        ({"rotary_dim": 4, "norm": "after"}, "llama, the nearest, does not have norm after and rotary_dim 4"),
        (OLMO | {"qkv_bias": True}, "olmo2, the nearest, does not have qkv_bias true"),
        (GEMMA | {"attention_scale": 0.3}, "gemma3_text, the nearest, does not have attention_scale 0.3"),
        (
            {"window": 8, "sliding": (0,), "rope": RopeSpec(sliding=YARN)},
            "smollm3, the nearest, does not have rotary positions of sliding layers",
        ),
    ],
    ids=["scale", "several", "bias", "odd scale", "sliding positions"],
)
def test_what_no_family_has_is_refused_in_one_sentence(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    spec = replace(SPEC, **changes)
    with pytest.raises(UsageError) as refusal:
        write_config(tmp_path, spec, spec.rope, 64)
    begin = f"no family of Hugging Face models has these layers: {message}"
    assert str(refusal.value) == f"{begin}. Sampling and evaluation by trivium need no such form."
    assert no_family(spec, spec.rope) == begin
    assert not list(tmp_path.iterdir())


def test_every_family_is_written_by_some_model() -> None:
    assert {family for family, _ in WRITTEN} == {family.name for family in FAMILIES}


def test_older_forms_of_rotary_positions_are_read(tmp_path: Path) -> None:
    scaling = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 16, "attention_factor": 1.2}
    write(tmp_path, "olmo3", rope_theta=5e5, rope_scaling=scaling)
    assert read_spec(tmp_path).rope == replace(YARN, sliding=RopeSpec(5e5))
    linear = {"rope_type": "linear", "factor": 8.0}
    write(tmp_path, "gemma3_text", rope_theta=1e6, rope_local_base_freq=1e4, rope_scaling=linear, head_dim=8)
    spec = read_spec(tmp_path)
    assert spec.rope == RopeSpec(1e6, "linear", 8.0, 64, sliding=RopeSpec(1e4))
    assert spec.sliding == (0, 1, 2, 3, 4, 6, 7)


def test_an_absent_key_means_what_it_means_there(tmp_path: Path) -> None:
    write(tmp_path, "mistral")
    assert (read_spec(tmp_path).window, len(read_spec(tmp_path).sliding)) == (4096, 8)
    write(tmp_path, "qwen3")
    spec = read_spec(tmp_path)
    assert (spec.head_dim, spec.window, spec.sliding) == (128, None, ())
    write(tmp_path, "qwen2", use_sliding_window=True, sliding_window=8, max_window_layers=6)
    assert read_spec(tmp_path).sliding == (6, 7)
    write(tmp_path, "olmo3", sliding_window=8)
    spec = read_spec(tmp_path)
    assert (spec.sliding, spec.rope) == ((0, 1, 2, 4, 5, 6), RopeSpec(5e5))
    write(tmp_path, "gemma2")
    spec = read_spec(tmp_path)
    assert (spec.attention_softcap, spec.logit_softcap, spec.sliding, spec.tied_embeddings) == (
        50.0,
        30.0,
        (0, 2, 4, 6),
        True,
    )


def refusal(folder: Path) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        read_spec(folder)
    return [line.partition("config.json: ")[2] for line in str(caught.value).splitlines()]


@pytest.mark.parametrize(
    ("family", "keys", "message"),
    [
        (
            "gemma3",
            {"text_config": {"model_type": "gemma3_text"}},
            'model_type is "gemma3", a model of more than text. Save its text model ("gemma3_text") by itself.',
        ),
        ("llama", {"hidden_act": "xielu"}, "silu, gelu and gelu_pytorch_tanh are."),
        ("llama", {"use_sliding_window": True}, "use_sliding_window is true, which is not built; false is."),
        ("olmo3", {"layer_types": ["full_attention"]}, '"full_attention" or "sliding_attention" for each of 8 layers.'),
        ("olmo3", {"layer_types": ["chunked_attention"] * 8}, "for each of 8 layers."),
        (
            "olmo3",
            {"sliding_window": None},
            "layer_types has sliding layers, but there is no sliding_window. Write it.",
        ),
        (
            "gemma3_text",
            {"attn_logit_softcapping": 50.0},
            "attn_logit_softcapping is 50.0, which is not built; null is.",
        ),
        (
            "gemma3_text",
            {"use_bidirectional_attention": True},
            "use_bidirectional_attention is true, which is not built",
        ),
        (
            "gemma3_text",
            {"final_logit_softcapping": "yes"},
            'final_logit_softcapping is "yes". It must be a number over 0',
        ),
        (
            "apertus",
            {},
            "rope_parameters are missing, which versions of transformers read in different ways. Write them.",
        ),
        (
            "llama",
            {"rope_parameters": {"full_attention": {"rope_type": "default"}}},
            "rope_parameters are by layer type (full_attention), which llama does not have.",
        ),
        (
            "olmo3",
            {"rope_parameters": {"rope_type": "default"}},
            "rope_parameters of olmo3 are tables full_attention and sliding_attention, and no others.",
        ),
        (
            "olmo3",
            {"rope_parameters": {"sliding_attention": {"rope_type": "dynamic"}}},
            'rope_type is "dynamic", which is not built; default, linear, yarn and llama3 are.',
        ),
        (
            "llama",
            {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}},
            "partial_rotary_factor is 0.5, which is not built; 1.0 is.",
        ),
    ],
)
def test_what_would_change_the_answers_and_is_not_known_is_refused(
    family: str, keys: dict[str, Any], message: str, tmp_path: Path
) -> None:
    write(tmp_path, family, **keys)
    (found,) = refusal(tmp_path)
    assert message in found

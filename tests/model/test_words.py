"""What a plan says of a model's layers."""

from dataclasses import replace

from trivium.model.spec import ModelSpec, RopeSpec
from trivium.model.words import export_line, layer_line

SPEC = ModelSpec(layers=8, width=32, heads=4, kv_heads=2, head_dim=8, ffn=64, vocab=50, max_seq_len=64)


def test_layers_like_llamas_need_no_words() -> None:
    assert layer_line(SPEC) is None
    assert export_line(SPEC, None) == "exported as llama"


def test_layers_that_differ_are_described() -> None:
    olmo = replace(SPEC, norm="after", qk_norm=True, qk_norm_joint=True, window=4096, sliding=(0, 1, 2, 4, 5, 6))
    assert layer_line(olmo) == (
        "6 of 8 slide within 4,096 tokens (SSSL), norms after sublayers, norms of queries and keys, over all heads "
        "together"
    )
    assert export_line(olmo, RopeSpec(scaling="yarn", factor=8.0, original_seq_len=64)) == "exported as olmo3"
    mistral = replace(SPEC, window=4096, sliding=tuple(range(8)))
    assert (layer_line(mistral), export_line(mistral, None)) == ("all slide within 4,096 tokens", "exported as mistral")
    odd = replace(
        SPEC, qkv_bias=True, activation="xielu", gated=False, rotary_dim=4, logit_scale=0.5, embedding_scale=32**0.5
    )
    assert layer_line(odd) == (
        "biases of queries, keys and values, xielu without a gate, 4 of 8 channels rotate, logit scale 0.5, embedding "
        "scale 5.657"
    )
    assert export_line(odd, None).startswith("cannot be exported: no family of Hugging Face models has these layers: ")

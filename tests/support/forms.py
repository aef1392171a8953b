"""Shapes of models whose layers differ from Llama's, each in one way, and in many ways together."""

from dataclasses import replace
from typing import Any

from tests.support.batches import TINY
from trivium.model.spec import ModelSpec, RopeSpec

PLAIN = replace(TINY, layers=2, max_seq_len=40)
NEAR = {"window": 5, "sliding": (0,)}
FORMS: dict[str, ModelSpec] = {
    name: replace(PLAIN, **fields)
    for name, fields in {
        "rotary_dim": {"rotary_dim": 4},
        "qk_norm": {"qk_norm": True},
        "qk_norm_joint": {"qk_norm": True, "qk_norm_joint": True},
        "qkv_bias": {"qkv_bias": True},
        "norm after": {"norm": "after"},
        "norm both": {"norm": "both"},
        "gelu": {"activation": "gelu"},
        "gelu_tanh": {"activation": "gelu_tanh"},
        "not gated": {"gated": False},
        "xielu": {"activation": "xielu", "gated": False},
        "xielu gated": {"activation": "xielu"},
        "sliding": NEAR,
        "all sliding": {"window": 1, "sliding": (0, 1)},
        "sliding rope": {**NEAR, "rope": RopeSpec(sliding=RopeSpec(50.0))},
        "dropped": {**NEAR, "rope": RopeSpec(dropped=(0,), sliding=RopeSpec(50.0))},
        "attention_scale": {"attention_scale": 0.1},
        "attention_softcap": {"attention_softcap": 1.5},
        "logit_softcap": {"logit_softcap": 3.0},
        "logit_scale": {"logit_scale": 0.25},
        "embedding_scale": {"embedding_scale": 5.5},
    }.items()
}

_SHARED: dict[str, Any] = {"max_seq_len": 40, "embedding_scale": 2.5, "logit_scale": 0.5, "logit_softcap": 3.0}
TOGETHER: dict[str, ModelSpec] = {
    "gemma": replace(
        PLAIN,
        **_SHARED,
        **NEAR,
        qk_norm=True,
        norm="both",
        activation="gelu_tanh",
        tied_embeddings=True,
        attention_scale=0.2,
        attention_softcap=2.0,
        rope=RopeSpec(scaling="linear", factor=4.0, original_seq_len=16, sliding=RopeSpec(50.0)),
    ),
    "apertus": replace(
        PLAIN,
        **_SHARED,
        qk_norm=True,
        qk_norm_joint=True,
        qkv_bias=True,
        norm="after",
        activation="xielu",
        gated=False,
        rotary_dim=4,
        window=7,
        sliding=(1,),
        rope=RopeSpec(dropped=(0,)),
    ),
}

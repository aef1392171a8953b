"""Shapes of models whose layers differ from Llama's in one way, or in many together; and weights for them."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.support.batches import TINY
from trivium.model.spec import ModelSpec, RopeSpec

LENGTH = 40
ROWS = ((12, 20, 8), (40,), (3, 25), (30, 2))
PLAIN = replace(TINY, max_seq_len=LENGTH)
NEAR: dict[str, Any] = {"window": 5, "sliding": (0,)}
_FIELDS: dict[str, dict[str, Any]] = {
    "rotary_dim": {"rotary_dim": 4},
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
}
ALONE: dict[str, ModelSpec] = {name: replace(PLAIN, **fields) for name, fields in _FIELDS.items()}
TOGETHER: dict[str, ModelSpec] = {
    "both": replace(
        PLAIN,
        **NEAR,
        qk_norm=True,
        norm="both",
        activation="gelu_tanh",
        tied_embeddings=True,
        attention_scale=0.2,
        attention_softcap=2.0,
        embedding_scale=2.5,
        logit_scale=0.5,
        logit_softcap=3.0,
        rope=RopeSpec(scaling="linear", factor=4.0, original_seq_len=16, sliding=RopeSpec(50.0)),
    ),
    "after": replace(
        PLAIN,
        qk_norm=True,
        qk_norm_joint=True,
        qkv_bias=True,
        norm="after",
        activation="xielu",
        gated=False,
        rotary_dim=4,
        window=7,
        sliding=(1,),
        logit_scale=0.5,
        rope=RopeSpec(dropped=(0,)),
    ),
}


def any_weights(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, NDArray[np.float32]]:
    """Of every parameter by its shape: none is zero or one, as biases and norms are at first."""
    random = np.random.default_rng(0)
    return {
        name: (random.standard_normal(shape) * 0.3 + (1.0 if name.endswith("norm.weight") else 0.0)).astype(np.float32)
        for name, shape in sorted(shapes.items())
    }

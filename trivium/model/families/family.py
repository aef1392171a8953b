"""A family of models: what its layers always have, what its config.json may say, and its names of parameters.

A family is data (`table.py` has all of them). `misfits` says what of a model it cannot express.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from trivium.model.spec import XIELU_BETA, XIELU_EPS, ModelSpec, RopeSpec

Windows = Literal["none", "all", "types"]  # no layer slides, all do or none, or those that `layer_types` marks

_PLAIN = {each.name: each.default for each in fields(ModelSpec)}
_FORM = (
    *("qk_norm", "qk_norm_joint", "qkv_bias", "norm", "gated", "rotary_dim"),
    *("attention_scale", "attention_softcap", "logit_softcap", "logit_scale", "embedding_scale"),
)
ACTIVATIONS = {"silu": "silu", "gelu": "gelu", "gelu_tanh": "gelu_pytorch_tanh", "xielu": "xielu"}

_SUBLAYERS = {
    "attention.query": "self_attn.q_proj",
    "attention.key": "self_attn.k_proj",
    "attention.value": "self_attn.v_proj",
    "attention.output": "self_attn.o_proj",
    "attention.query_norm": "self_attn.q_norm",
    "attention.key_norm": "self_attn.k_norm",
    "feed_forward.gate": "mlp.gate_proj",
    "feed_forward.up": "mlp.up_proj",
    "feed_forward.down": "mlp.down_proj",
    "feed_forward.activation": "mlp.act_fn",
}
_BEFORE = {"attention_norm": "input_layernorm", "feed_forward_norm": "post_attention_layernorm"}
AFTER = {"attention_post_norm": "post_attention_layernorm", "feed_forward_post_norm": "post_feedforward_layernorm"}
BOTH = {"attention_norm": "input_layernorm", "feed_forward_norm": "pre_feedforward_layernorm"} | AFTER
_OTHERS = {"embedding": "model.embed_tokens", "norm": "model.norm", "unembedding": "lm_head"}


@dataclass(frozen=True, slots=True)
class Family:
    """One family, by its `model_type`."""

    name: str
    architecture: str
    fixed: Mapping[str, Any] = field(default_factory=dict)  # what its layers have that Llama's do not
    config: Mapping[str, str] = field(default_factory=dict)  # our field -> their key, of numbers that may be absent
    norms: Mapping[str, str] = field(default_factory=lambda: _BEFORE)
    windows: Windows = "none"
    rope_by_type: bool = False  # sliding layers may have rotary positions of their own
    drops_rope: bool = False  # layers may have no rotary positions
    is_gemma: bool = False  # norms multiply by 1 + weight, embeddings by sqrt(width)
    has_xielu: bool = False
    activation_key: str = "hidden_act"
    defaults: Mapping[str, Any] = field(default_factory=dict)  # what an absent key means

    def their_name(self, name: str) -> str:
        """`layers.3.attention.query.weight` -> `model.layers.3.self_attn.q_proj.weight`."""
        owner, _, kind = name.rpartition(".")
        if owner in _OTHERS:
            return f"{_OTHERS[owner]}.{kind}"
        _, number, part = owner.split(".", 2)
        return f"model.layers.{number}.{(_SUBLAYERS | dict(self.norms))[part]}.{kind}"

    def added(self, name: str) -> float:
        """What our values of a parameter are more than theirs."""
        return 1.0 if self.is_gemma and name.rpartition(".")[0].endswith("norm") else 0.0

    def constants(self, spec: ModelSpec) -> dict[str, float]:
        """Numbers that their files hold beside the parameters, by their names."""
        if spec.activation != "xielu":
            return {}
        values = {"beta": XIELU_BETA, "eps": XIELU_EPS}
        layers = range(spec.layers)
        return {f"model.layers.{layer}.mlp.act_fn.{key}": value for layer in layers for key, value in values.items()}

    def misfits(self, spec: ModelSpec, rope: RopeSpec) -> Iterator[str]:
        """What of a model the family cannot express."""
        for key in _FORM:
            value = getattr(spec, key)
            if key not in self.config and value != self.expected(key, spec):
                yield f"{key} {_shown(value)}"
        if spec.activation == "xielu" and not self.has_xielu:
            yield "activation xielu"
        if not self._has_windows(spec):
            yield "sliding layers" if self.windows == "none" else "sliding layers beside others"
        if rope.sliding is not None and spec.sliding and not self.rope_by_type:
            yield "rotary positions of sliding layers"
        if rope.dropped and not self.drops_rope:
            yield "layers without rotary positions"
        if self.is_gemma and spec.attention_scale is not None and not _is_root(spec.attention_scale):
            yield f"attention_scale {_shown(spec.attention_scale)}"
        if self.is_gemma and spec.width % spec.heads:
            yield f"heads that do not divide width {spec.width}"

    def expected(self, key: str, spec: ModelSpec) -> Any:
        """The value of a field that the family's layers have."""
        if key == "embedding_scale" and self.is_gemma:
            return spec.width**0.5
        return self.fixed.get(key, _PLAIN[key])

    def _has_windows(self, spec: ModelSpec) -> bool:
        if not spec.sliding or self.windows == "types":
            return True
        return self.windows == "all" and len(spec.sliding) == spec.layers


def _is_root(scale: float) -> bool:
    """Whether a scale is 1 / sqrt of a whole number."""
    return float(round(scale**-2) ** -0.5) == scale


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)

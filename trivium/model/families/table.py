"""Every family that is read and written, from simple to special: a model is written as the first that can have it."""

from trivium.errors import UsageError
from trivium.model.families.family import AFTER, BOTH, Family
from trivium.model.spec import ModelSpec, RopeSpec

_QWEN = {"use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 28}
_CAPS = {
    "logit_softcap": "final_logit_softcapping",
    "attention_scale": "query_pre_attn_scalar",
}

FAMILIES = (
    Family("llama", "LlamaForCausalLM"),
    Family("mistral", "MistralForCausalLM", windows="all", defaults={"sliding_window": 4096}),
    Family("qwen2", "Qwen2ForCausalLM", {"qkv_bias": True}, windows="types", defaults=_QWEN),
    Family("qwen3", "Qwen3ForCausalLM", {"qk_norm": True}, windows="types", defaults={"head_dim": 128} | _QWEN),
    Family(
        "smollm3",
        "SmolLM3ForCausalLM",
        windows="types",
        drops_rope=True,
        defaults={"rope_theta": 2e6, "tie_word_embeddings": True, "use_sliding_window": False, "sliding_window": None},
    ),
    Family("olmo2", "Olmo2ForCausalLM", {"qk_norm": True, "qk_norm_joint": True, "norm": "after"}, norms=AFTER),
    Family(
        "olmo3",
        "Olmo3ForCausalLM",
        {"qk_norm": True, "qk_norm_joint": True, "norm": "after"},
        norms=AFTER,
        windows="types",
        rope_by_type=True,
        defaults={"sliding_window": 4096, "rope_theta": 5e5},
    ),
    Family(
        "apertus",
        "ApertusForCausalLM",
        {"qk_norm": True, "gated": False},
        norms={"attention_norm": "attention_layernorm", "feed_forward_norm": "feedforward_layernorm"},
        has_xielu=True,
        defaults={"hidden_act": "xielu"},
    ),
    Family(
        "gemma2",
        "Gemma2ForCausalLM",
        {"norm": "both"},
        {**_CAPS, "attention_softcap": "attn_logit_softcapping"},
        norms=BOTH,
        windows="types",
        is_gemma=True,
        activation_key="hidden_activation",
        defaults={
            "hidden_activation": "gelu_pytorch_tanh",
            "head_dim": 256,
            "sliding_window": 4096,
            "tie_word_embeddings": True,
            "query_pre_attn_scalar": 256,
            "final_logit_softcapping": 30.0,
            "attn_logit_softcapping": 50.0,
        },
    ),
    Family(
        "gemma3_text",
        "Gemma3ForCausalLM",
        {"norm": "both", "qk_norm": True},
        _CAPS,
        norms=BOTH,
        windows="types",
        rope_by_type=True,
        is_gemma=True,
        activation_key="hidden_activation",
        defaults={
            "hidden_activation": "gelu_pytorch_tanh",
            "head_dim": 256,
            "sliding_window": 4096,
            "tie_word_embeddings": True,
            "query_pre_attn_scalar": 256,
            "rope_theta": 1e6,
            "rope_local_base_freq": 1e4,
        },
    ),
)
BY_NAME = {family.name: family for family in FAMILIES}


def family_of(spec: ModelSpec, rope: RopeSpec) -> Family:
    """The family that a model is written as; UsageError, in one sentence, where none can express it."""
    found = next((family for family in FAMILIES if not any(family.misfits(spec, rope))), None)
    if found is None:
        raise UsageError(f"{no_family(spec, rope)}. Sampling and evaluation by trivium need no such form.")
    return found


def no_family(spec: ModelSpec, rope: RopeSpec) -> str | None:
    """Why a model cannot be written in Hugging Face's form, as the beginning of a sentence; None where it can."""
    lacking = {family.name: list(family.misfits(spec, rope)) for family in FAMILIES}
    nearest = min(lacking, key=lambda name: len(lacking[name]))
    if not lacking[nearest]:
        return None
    what = " and ".join(lacking[nearest])
    return f"no family of Hugging Face models has these layers: {nearest}, the nearest, does not have {what}"

"""Families of transformers at a size that a test can train: what each needs beside layers, width and heads."""

from typing import Any

from trivium.model.foreign import keys_spec
from trivium.model.spec import ModelSpec

SIZES: dict[str, Any] = {
    "layers": 2,
    "width": 64,
    "heads": 4,
    "kv_heads": 2,
    "ffn": 96,
    "vocab": 128,
    "max_seq_len": 128,
}
WINDOW = 10  # slots, of layers that slide
SLIDES = {"sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"]}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2}
MLA = {"q_lora_rank": 32, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 12}

# By family: keys of [model] that it has in place of the plain ones (None: it has no such key), and its own keys.
FAMILIES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "apertus": ({}, {}),
    "arcee": ({}, {}),
    "biogpt": (
        {"kv_heads": None, "norm_eps": None},
        {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "activation_dropout": 0.0, "layerdrop": 0.0},
    ),
    "bitnet": ({}, {}),
    "cohere": ({}, {"logit_scale": 0.25}),
    "cohere2": ({}, SLIDES),
    "cwm": ({"head_dim": 16}, SLIDES),
    "deepseek_v3": (
        {"kv_heads": 4},
        {
            **MLA,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "n_group": 2,
            "topk_group": 1,
            "first_k_dense_replace": 1,
            "moe_intermediate_size": 32,
        },
    ),
    "ernie4_5": ({}, {}),
    "ernie4_5_moe": (
        {},
        {"moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 32, "moe_layer_start_index": 0},
    ),
    "exaone4": ({}, {**SLIDES, "sliding_window_pattern": 2}),
    "flex_olmo": ({}, EXPERTS),
    "gemma": ({"head_dim": 16}, {}),
    "gemma2": ({"head_dim": 16}, {**SLIDES, "final_logit_softcapping": 5.0, "attn_logit_softcapping": 2.0}),
    "gemma3_text": ({"head_dim": 16}, SLIDES),
    "glm4": ({}, {}),
    "gpt2": (
        {"kv_heads": None, "ffn": None, "head_dim": None, "norm_eps": None},
        {"attn_pdrop": 0.0, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "summary_first_dropout": 0.0},
    ),
    "gpt_neox": ({"kv_heads": None, "norm_eps": None}, {}),
    "granite": ({}, {"logits_scaling": 4.0, "embedding_multiplier": 3.0, "attention_multiplier": 0.1}),
    "granitemoe": ({}, {"num_local_experts": 4, "num_experts_per_tok": 2, "router_aux_loss_coef": 0.01}),
    "helium": ({"head_dim": 16}, {}),
    "llama": ({}, {}),
    "mistral": ({}, {"sliding_window": WINDOW}),
    "mixtral": ({}, {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "nanochat": ({}, {"final_logit_softcapping": 5.0}),
    "olmo": ({}, {}),
    "olmo2": ({}, {}),
    "olmo3": ({}, SLIDES),
    "olmoe": ({}, EXPERTS),
    "phi": ({"norm_eps": None}, {}),
    "phi3": ({}, {"pad_token_id": None}),
    "qwen2": ({}, {}),
    "qwen2_moe": ({}, {**EXPERTS, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 48}),
    "qwen3": ({"head_dim": 16}, {}),
    "qwen3_moe": ({"head_dim": 16}, {**EXPERTS, "moe_intermediate_size": 32}),
    "seed_oss": ({"head_dim": 16}, {"attention_dropout": 0.0, "residual_dropout": 0.0}),
    "smollm3": ({}, {"no_rope_layers": [1, 0], "pad_token_id": None}),
    "starcoder2": ({"norm_eps": None}, {"sliding_window": WINDOW}),
}


def tiny(family: str) -> ModelSpec:
    """A family's model of two layers."""
    keys, options = FAMILIES[family]
    given = {key: value for key, value in {**SIZES, **keys}.items() if value is not None}
    return keys_spec(family, given, options)

"""Tiny models of every family, made by transformers itself."""

from typing import Any

import pytest
import torch
from torch import Tensor

VOCAB, SEQ_LEN, WINDOW = 101, 40, 8  # rows are longer than the window
SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.2,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 16}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
LINEAR = {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0}
PLAIN = {"rope_type": "default", "rope_theta": 1e4}
TYPES = ["sliding_attention", "full_attention", "sliding_attention", "sliding_attention"]
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", {"rope_parameters": LLAMA3}),
    "llama, other activation": ("LlamaConfig", {"hidden_act": "gelu", "tie_word_embeddings": True}),
    "mistral": ("MistralConfig", {"sliding_window": WINDOW, "head_dim": 16}),
    "mistral, tied": ("MistralConfig", {"sliding_window": 3, "tie_word_embeddings": True, "rope_parameters": YARN}),
    "qwen2": ("Qwen2Config", {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}),
    "qwen2, sliding": (
        "Qwen2Config",
        {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 2, "tie_word_embeddings": True},
    ),
    "qwen3": ("Qwen3Config", {"head_dim": 16, "rope_parameters": YARN}),
    "qwen3, sliding": (
        "Qwen3Config",
        {"use_sliding_window": True, "sliding_window": WINDOW, "layer_types": TYPES, "head_dim": 16},
    ),
    "smollm3": ("SmolLM3Config", {"no_rope_layer_interval": 2, "tie_word_embeddings": False}),
    "smollm3, sliding": (
        "SmolLM3Config",
        {"no_rope_layers": [1, 0, 1, 0], "use_sliding_window": True, "sliding_window": WINDOW},
    ),
    "olmo2": ("Olmo2Config", {}),
    "olmo2, tied": ("Olmo2Config", {"tie_word_embeddings": True, "rope_parameters": YARN, "num_key_value_heads": 4}),
    "olmo3": ("Olmo3Config", {"sliding_window": WINDOW}),
    "olmo3, stretched": (
        "Olmo3Config",
        {
            "sliding_window": WINDOW,
            "layer_types": TYPES,
            "rope_parameters": {"full_attention": YARN, "sliding_attention": PLAIN},
        },
    ),
    "apertus": ("ApertusConfig", {"rope_parameters": LLAMA3, "dtype": "float32"}),
    "apertus, plain": (
        "ApertusConfig",
        {"rope_parameters": PLAIN, "tie_word_embeddings": True, "head_dim": 16, "dtype": "float32"},
    ),
    "gemma2": (
        "Gemma2Config",
        {"sliding_window": WINDOW, "head_dim": 8, "query_pre_attn_scalar": 16, "attn_logit_softcapping": 2.0},
    ),
    "gemma3_text": (
        "Gemma3TextConfig",
        {"sliding_window": WINDOW, "sliding_window_pattern": 3, "head_dim": 8, "query_pre_attn_scalar": 16},
    ),
    "gemma3_text, stretched": (
        "Gemma3TextConfig",
        {
            "sliding_window": 5,
            "layer_types": TYPES,
            "head_dim": 16,
            "query_pre_attn_scalar": 16,
            "final_logit_softcapping": 4.0,
            "tie_word_embeddings": False,
            "rope_parameters": {"full_attention": LINEAR, "sliding_attention": PLAIN},
        },
    ),
}


def their_config(name: str) -> Any:
    """transformers' own config."""
    kind, changes = MODELS[name]
    return getattr(pytest.importorskip("transformers"), kind)(**SHAPE | changes)


def their_model(name: str) -> Any:
    """With norms, biases and learnt numbers that are not those of the first step."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = their_config(name)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter += 0.3 * torch.randn_like(parameter)
    return model


@torch.no_grad()
def their_logits(model: Any, tokens: Any) -> Tensor:
    logits: Tensor = model(torch.as_tensor(tokens).long()).logits
    return logits

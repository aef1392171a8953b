"""Models of every family, made by transformers itself: read, packed, trained, written and generated with as there."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.support.batches import make_batch, settings_at
from trivium.engine.base import EngineSettings, StageSettings
from trivium.engine.torch.engine import TorchEngine
from trivium.engine.torch.model import DeviceBatch
from trivium.model.folder import read_spec
from trivium.model.huggingface import read_family
from trivium.rows.batch import Batch

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
    "mistral": ("MistralConfig", {"sliding_window": WINDOW, "head_dim": 16}),
    "mistral, tied": ("MistralConfig", {"sliding_window": 3, "tie_word_embeddings": True, "rope_parameters": YARN}),
    "qwen2": ("Qwen2Config", {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}),
    "qwen2, sliding": (
        "Qwen2Config",
        {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 2, "tie_word_embeddings": True},
    ),
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


def their_model(name: str) -> Any:
    """With norms, biases and learnt numbers that are not those of the first step."""
    transformers = pytest.importorskip("transformers")
    kind, changes = MODELS[name]
    torch.manual_seed(0)
    config = getattr(transformers, kind)(**SHAPE | changes)
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


@torch.no_grad()
def our_logits(engine: TorchEngine, batch: Batch) -> Tensor:
    return engine.model.logits(DeviceBatch.of(batch, engine.rotation, True))


def engine_from(folder: Path) -> TorchEngine:
    engine = TorchEngine(EngineSettings(read_spec(folder), device="cpu"))
    engine.start_from(folder)
    engine.enter(StageSettings(SEQ_LEN))
    return engine


def greedy(engine: TorchEngine, prompt: list[int], count: int) -> list[int]:
    generation = engine.generation([np.array(prompt)], count)
    row = list(prompt)
    for _ in range(count):
        row.append(int(generation.logits()[0].argmax()))
        generation.append(np.array(row[-1:]))
    return row


@pytest.mark.parametrize("name", MODELS)
def test_a_model_of_theirs_is_read_packed_trained_written_and_continued(name: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    theirs = their_model(name)
    theirs.save_pretrained(tmp_path / "theirs")
    engine, row = engine_from(tmp_path / "theirs"), make_batch(((SEQ_LEN,),), seq_len=SEQ_LEN, vocab=VOCAB)
    assert read_family(tmp_path / "theirs").name == name.partition(",")[0]
    torch.testing.assert_close(our_logits(engine, row), their_logits(theirs, row.tokens), rtol=1e-5, atol=1e-5)

    packed = make_batch(((17, 23),), seq_len=SEQ_LEN, vocab=VOCAB)
    apart = torch.cat([their_logits(theirs, part) for part in (packed.tokens[:, :17], packed.tokens[:, 17:])], 1)
    torch.testing.assert_close(our_logits(engine, packed), apart, rtol=1e-5, atol=1e-5)

    for step in range(2):
        assert np.isfinite(engine.step(packed, settings_at(step)).loss)
    engine.export(tmp_path / "ours")
    assert read_spec(tmp_path / "ours") == engine.settings.spec
    again = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "ours", dtype=torch.float32, attn_implementation="eager"
    ).eval()
    found = their_logits(again, row.tokens)
    torch.testing.assert_close(found, our_logits(engine, row), rtol=1e-5, atol=1e-5)

    prompt = row.tokens[0, :6].tolist()
    written = again.generate(torch.tensor([prompt]), max_new_tokens=20, do_sample=False)
    assert greedy(engine, prompt, 20) == written[0].tolist()


@pytest.mark.parametrize("name", ["qwen2", "olmo3", "apertus", "gemma3_text"])
def test_gradients_are_those_of_their_model(name: str, tmp_path: Path) -> None:
    """Of a loss over whole logits, for every parameter."""
    theirs, row = their_model(name), make_batch(((SEQ_LEN,),), seq_len=SEQ_LEN, vocab=VOCAB)
    theirs.save_pretrained(tmp_path)
    engine, family = engine_from(tmp_path), read_family(tmp_path)
    tokens, targets = (torch.from_numpy(each).long() for each in (row.tokens, row.targets))
    loss = torch.nn.functional.cross_entropy(theirs(tokens).logits[0, :-1], targets[0, :-1])
    loss.backward()  # type: ignore[no-untyped-call]
    engine._gradients(row, 1 / (SEQ_LEN - 1))
    expected = {name: each.grad for name, each in theirs.named_parameters()}
    for ours, parameter in engine.model.named_parameters():
        assert parameter.grad is not None
        wanted = expected[family.their_name(ours)]
        torch.testing.assert_close(parameter.grad[: len(wanted)], wanted, rtol=1e-3, atol=1e-5, msg=ours)

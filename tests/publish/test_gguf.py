"""GGUF files as llama.cpp itself reads them: the same ids of texts, and the same tokens after a prompt."""

import json
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.models import BYTES
from trivium.ask.export import write_tokenizer
from trivium.config.schema import Tokenizer as TokenizerConfig
from trivium.engine.base import Engine, EngineSettings
from trivium.engine.make import make_engine
from trivium.errors import UsageError
from trivium.model.huggingface import read_family
from trivium.model.spec import ModelSpec, RopeSpec
from trivium.publish.gguf import write_gguf
from trivium.publish.gguf_type import GgufType
from trivium.text.file_tokenizer import FileTokenizer
from trivium.text.tokenizer import Tokenizer, open_tokenizer
from trivium.text.tokenizer_export import SAMPLE_TEXTS
from trivium.text.train_tokenizer import train_tokenizer
from trivium.text.train_tokenizer import write_tokenizer as write_trained

SPEC = ModelSpec(4, 64, heads=4, kv_heads=2, head_dim=16, ffn=96, vocab=BYTES.vocab, max_seq_len=128, init_std=0.2)
YARN = RopeSpec(scaling="yarn", factor=4.0, original_seq_len=32)
SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": ("llama", {}),
    "llama3": ("llama", {"rope": RopeSpec(5e5, "llama3", 8.0, 16)}),
    "yarn": ("llama", {"rope": YARN}),
    "linear, tied": ("llama", {"tied_embeddings": True, "rope": RopeSpec(scaling="linear", factor=2.0)}),
    "qwen2": ("qwen2", {"qkv_bias": True}),
    "qwen3": ("qwen3", {"qk_norm": True, "head_dim": 32}),
    "smollm3": ("smollm3", {"rope": RopeSpec(dropped=(3,))}),
    "olmo2": ("olmo2", {"qk_norm": True, "qk_norm_joint": True, "norm": "after"}),
    "apertus": ("apertus", {"qk_norm": True, "gated": False, "activation": "xielu"}),
}
PROMPT, WRITTEN = "The tide comes", 16


@contextmanager
def llama_cpp(path: Path) -> Iterator[str]:
    """The address of llama.cpp with a model."""
    library = pytest.importorskip("xllamacpp")
    params = library.CommonParams()
    params.model.path = str(path)
    params.n_ctx, params.n_parallel, params.warmup, params.fit_params, params.verbosity = 128, 1, False, False, 0
    params.cpuparams.n_threads = 1
    server = library.Server(params)
    yield server.listening_address
    del server


def asked(address: str, what: str, **body: Any) -> Any:
    request = urllib.request.Request(f"{address}/{what}", json.dumps(body).encode())
    request.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def exported(folder: Path, spec: ModelSpec, tokenizer: Tokenizer = BYTES) -> Engine:
    engine = make_engine(EngineSettings(spec, device="cpu"))
    engine.export(folder)
    write_tokenizer(tokenizer, folder, ())
    return engine


def greedy(engine: Engine, prompt: list[int], vocab: int) -> list[int]:
    generation, row = engine.generation([np.array(prompt)], WRITTEN), []
    for _ in range(WRITTEN):
        row.append(int(generation.logits()[0][:vocab].argmax()))
        generation.append(np.array(row[-1:]))
    return row


def until_end(tokens: list[int]) -> list[int]:
    """Up to the first special token, where llama.cpp stops."""
    return tokens[: next((at for at, token in enumerate(tokens) if token >= 256), None)]


@pytest.mark.slow
@pytest.mark.parametrize("name", SHAPES)
def test_llama_cpp_writes_the_same_tokens(name: str, tmp_path: Path) -> None:
    family, changes = SHAPES[name]
    spec = replace(SPEC, **changes)
    engine = exported(tmp_path / "hf", spec)
    assert read_family(tmp_path / "hf").name == family
    write_gguf(tmp_path / "hf", tmp_path / "model.gguf", GgufType.F32, "small")
    expected = until_end(greedy(engine, list(PROMPT.encode()), spec.vocab))
    with llama_cpp(tmp_path / "model.gguf") as address:
        found = asked(address, "completion", prompt=PROMPT, n_predict=WRITTEN, temperature=0, return_tokens=True)
    assert len(expected) > 2
    assert until_end(found["tokens"]) == expected


@pytest.mark.slow
@pytest.mark.parametrize("stored", [GgufType.F16, GgufType.BF16, GgufType.Q8_0])
def test_smaller_types_are_read_too(stored: GgufType, tmp_path: Path) -> None:
    engine = exported(tmp_path / "hf", SPEC)
    whole, smaller = tmp_path / "whole.gguf", tmp_path / "smaller.gguf"
    write_gguf(tmp_path / "hf", whole, GgufType.F32, "small")
    write_gguf(tmp_path / "hf", smaller, stored, "small")
    assert smaller.stat().st_size < 0.7 * whole.stat().st_size
    with llama_cpp(smaller) as address:
        found = asked(address, "completion", prompt=PROMPT, n_predict=1, temperature=0, return_tokens=True)
    assert found["tokens"] == greedy(engine, list(PROMPT.encode()), SPEC.vocab)[:1]


@pytest.mark.slow
def test_llama_cpp_gives_texts_and_talks_the_same_ids(tmp_path: Path) -> None:
    texts = [Path(__file__).read_text(encoding="utf-8"), *SAMPLE_TEXTS]
    path = write_trained(train_tokenizer(texts, 600), tmp_path / "tokenizer")
    tokenizer = open_tokenizer(TokenizerConfig(path=str(path)))
    assert isinstance(tokenizer, FileTokenizer)
    exported(tmp_path / "hf", replace(SPEC, vocab=640), tokenizer)
    write_gguf(tmp_path / "hf", tmp_path / "model.gguf", GgufType.F32, "small")
    with llama_cpp(tmp_path / "model.gguf") as address:
        for text in (*SAMPLE_TEXTS, *texts[0].split("\n\n\n")[:3]):
            assert asked(address, "tokenize", content=text)["tokens"] == tokenizer.encode([text])[0].tolist()
        marker = tokenizer.special("user_start")
        assert marker is not None
        named = tokenizer.special_names[marker]
        assert asked(address, "tokenize", content=named, parse_special=True)["tokens"] == [marker]


@pytest.mark.parametrize(
    ("changes", "stored", "told"),
    [
        ({"window": 8, "sliding": (0, 1, 2, 3)}, GgufType.F32, "sliding layers"),
        ({"activation": "gelu"}, GgufType.F32, "activation gelu"),
        ({"rope": RopeSpec(dropped=(1,))}, GgufType.F32, "layers without rotary positions other than every 4th"),
        (
            {"rope": RopeSpec(scaling="yarn", factor=2.0, original_seq_len=32, attention_factor=1.5)},
            GgufType.F32,
            "1.5",
        ),
        ({"ffn": 40}, GgufType.Q8_0, "q8_0 of matrices of 40 columns"),
        ({"norm": "both"}, GgufType.F32, "the family gemma2"),
    ],
    ids=["window", "activation", "dropped", "yarn", "q8_0", "family"],
)
def test_what_llama_cpp_would_compute_otherwise_is_refused(
    changes: dict[str, Any], stored: GgufType, told: str, tmp_path: Path
) -> None:
    if changes.get("norm") == "both":
        changes = changes | {"embedding_scale": 8.0, "activation": "gelu_tanh", "tied_embeddings": True}
    exported(tmp_path / "hf", replace(SPEC, **changes))
    with pytest.raises(UsageError, match=r"llama\.cpp would compute something else: ") as caught:
        write_gguf(tmp_path / "hf", tmp_path / "model.gguf", stored, "small")
    assert told in str(caught.value)
    assert not list(tmp_path.glob("*.gguf"))


def test_a_tokenizer_that_llama_cpp_does_not_know_is_refused(tmp_path: Path) -> None:
    exported(tmp_path / "hf", SPEC)
    path = tmp_path / "hf/tokenizer.json"
    described = json.loads(path.read_text())
    described["model"]["merges"] = [["a", "b"]]
    path.write_text(json.dumps(described))
    with pytest.raises(UsageError, match="knows no split of text like this tokenizer's"):
        write_gguf(tmp_path / "hf", tmp_path / "model.gguf", GgufType.F32, "small")
    path.unlink()
    with pytest.raises(UsageError, match="has no tokenizer"):
        write_gguf(tmp_path / "hf", tmp_path / "model.gguf", GgufType.F32, "small")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["hf"]

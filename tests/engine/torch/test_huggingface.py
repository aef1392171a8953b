"""Hugging Face folders, both ways: held to `transformers`' own logits."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.support.batches import TINY, make_batch, settings_at
from tests.support.families import SEQ_LEN, VOCAB, their_logits, their_model
from trivium.engine.base import EngineSettings, StageSettings
from trivium.engine.torch.engine import TorchEngine
from trivium.engine.torch.huggingface import write_folder
from trivium.engine.torch.model import Decoder, DeviceBatch
from trivium.errors import ConfigError, ResumeError
from trivium.model.folder import read_spec
from trivium.model.spec import ModelSpec, RopeSpec

ROW = make_batch(((SEQ_LEN,),), seq_len=SEQ_LEN, vocab=VOCAB)


@torch.no_grad()
def our_logits(engine: TorchEngine) -> Tensor:
    return engine.model.logits(DeviceBatch.of(ROW, engine.rotation, True))


def engine_from(folder: Path) -> TorchEngine:
    engine = TorchEngine(EngineSettings(read_spec(folder), device="cpu"))
    engine.start_from(folder)
    return engine


@pytest.mark.parametrize("name", ["llama", "llama, other activation"])
def test_their_model_in_several_files_gives_the_same_logits_here(name: str, tmp_path: Path) -> None:
    """One of them is tied. Models in one file, of every family: test_families.py."""
    theirs = their_model(name)
    theirs.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    expected = their_logits(theirs, ROW.tokens)
    torch.testing.assert_close(our_logits(engine_from(tmp_path)), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shard_bytes", [10**9, 20_000])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"tied_embeddings": True, "rope": RopeSpec(scaling="linear", factor=2.0, original_seq_len=16)},
        {"qk_norm": True, "head_dim": 16, "rope": RopeSpec(scaling="yarn", factor=4.0, original_seq_len=16)},
        {"rope": RopeSpec(5e5, "llama3", 8.0, 16)},
        {"layers": 4, "rope": RopeSpec(dropped=(1, 3))},
    ],
    ids=["llama", "linear-tied", "qwen3-yarn", "llama3", "smollm3"],
)
def test_our_model_gives_the_same_logits_there(changes: dict[str, Any], shard_bytes: int, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    spec = replace(TINY, vocab=VOCAB, max_seq_len=64, **changes)
    engine = TorchEngine(EngineSettings(spec, device="cpu"))
    assert isinstance(engine.model, Decoder)
    write_folder(engine.model, spec.rope, spec.max_seq_len, tmp_path, shard_bytes)
    assert (len(list(tmp_path.glob("*.safetensors"))) > 1) == (shard_bytes == 20_000)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    torch.testing.assert_close(their_logits(theirs, ROW.tokens), our_logits(engine), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(our_logits(engine_from(tmp_path)), our_logits(engine), rtol=0, atol=0)


def test_an_export_has_the_rotary_positions_and_row_length_that_it_was_trained_with(tmp_path: Path) -> None:
    engine = TorchEngine(EngineSettings(TINY, device="cpu"))
    stretched = RopeSpec(5e5, "yarn", 4.0, 16)
    engine.enter(StageSettings(64, rope=stretched))
    engine.step(make_batch(), settings_at())
    engine.export(tmp_path)
    assert read_spec(tmp_path) == replace(TINY, rope=stretched, max_seq_len=64)


def test_every_kind_of_shape_comes_back(tmp_path: Path) -> None:
    shapes: list[ModelSpec] = [TINY, replace(TINY, qk_norm=True), replace(TINY, tied_embeddings=True, head_dim=16)]
    for number, spec in enumerate(shapes):
        TorchEngine(EngineSettings(spec, device="cpu")).export(tmp_path / str(number))
        assert read_spec(tmp_path / str(number)) == spec


def exported(folder: Path) -> TorchEngine:
    engine = TorchEngine(EngineSettings(TINY, device="cpu"))
    engine.export(folder)
    return engine


def change_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_what_is_not_built_is_refused_all_at_once(tmp_path: Path) -> None:
    exported(tmp_path)
    change_config(tmp_path, hidden_act="relu", attention_bias=True, rope_scaling={"rope_type": "longrope"})
    with pytest.raises(ConfigError) as refusal:
        read_spec(tmp_path)
    path = tmp_path / "config.json"
    assert str(refusal.value).splitlines() == [
        f'{path}: hidden_act is "relu", which is not built; silu, gelu and gelu_pytorch_tanh are.',
        f"{path}: attention_bias is true, which is not built; false is.",
        f'{path}: rope_type is "longrope", which is not built; default, linear, yarn and llama3 are.',
    ]


@pytest.mark.parametrize(
    ("layers", "dropped"),
    [([1, 0, 0, 1], (1, 2)), ([1, 1, 1, 1], ()), (None, (1, 3))],
    ids=["any", "none", "interval"],
)
def test_layers_without_rotary_positions_are_read(
    layers: list[int] | None, dropped: tuple[int, ...], tmp_path: Path
) -> None:
    TorchEngine(EngineSettings(replace(TINY, layers=4, rope=RopeSpec(dropped=(1, 2))), device="cpu")).export(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["no_rope_layers"] == [1, 0, 0, 1]
    change_config(tmp_path, no_rope_layers=layers, no_rope_layer_interval=2)
    assert read_spec(tmp_path).rope.dropped == dropped


def test_a_list_of_layers_that_is_none_is_refused(tmp_path: Path) -> None:
    TorchEngine(EngineSettings(replace(TINY, layers=4, rope=RopeSpec(dropped=(1, 2))), device="cpu")).export(tmp_path)
    change_config(tmp_path, no_rope_layers="yes")
    with pytest.raises(ConfigError, match=r'no_rope_layers is "yes"\. It must be a list of 0 and 1\.'):
        read_spec(tmp_path)


def test_a_family_that_nobody_has_is_refused(tmp_path: Path) -> None:
    exported(tmp_path)
    change_config(tmp_path, model_type="gpt9")
    with pytest.raises(ConfigError, match='"gpt9" is not a family of causal language models that transformers has'):
        read_spec(tmp_path)


def test_a_sliding_window_is_that_of_all_layers(tmp_path: Path) -> None:
    exported(tmp_path)
    change_config(tmp_path, model_type="mistral", max_position_embeddings=64, sliding_window=32)
    spec = read_spec(tmp_path)
    assert (spec.max_seq_len, spec.window, spec.sliding) == (64, 32, (0, 1))


def test_another_shape_is_refused_by_name(tmp_path: Path) -> None:
    exported(tmp_path)
    wider = TorchEngine(EngineSettings(replace(TINY, ffn=128), device="cpu"))
    with pytest.raises(ResumeError, match="holds another model: ffn was 64 and is now 128"):
        wider.start_from(tmp_path)


def test_tensors_that_do_not_fit_are_refused_all_at_once(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    engine = exported(tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    del tensors["model.norm.weight"]
    tensors["model.layers.0.self_attn.q_proj.bias"] = torch.zeros(32)
    tensors["lm_head.weight"] = torch.zeros(3, 32)
    save_file(tensors, path)
    with pytest.raises(ConfigError) as refusal:
        engine.start_from(tmp_path)
    assert str(refusal.value).splitlines() == [
        f"{tmp_path}: model.norm.weight is missing.",
        f"{tmp_path}: model.layers.0.self_attn.q_proj.bias has no place in the model that config.json describes.",
        f"{path}: lm_head.weight is [3, 32], but config.json asks for [50, 32].",
    ]


def test_pickled_weights_are_refused(tmp_path: Path) -> None:
    engine = exported(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(ConfigError, match="is a pickle, which may run code when it is read, and is never opened"):
        engine.start_from(tmp_path)


def test_weights_are_readable_by_whoever_may_read_the_config(tmp_path: Path) -> None:
    exported(tmp_path)
    assert len({path.stat().st_mode for path in tmp_path.iterdir()}) == 1


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    engine = exported(tmp_path)
    assert isinstance(engine.model, Decoder)
    write_folder(engine.model, TINY.rope, 16, tmp_path, shard_bytes=10_000)
    shard = sorted(tmp_path.glob("model-*.safetensors"))[1]
    shard.unlink()
    with pytest.raises(ConfigError) as refusal:
        engine.start_from(tmp_path)
    assert str(refusal.value) == f"{shard}: is missing, but model.safetensors.index.json names it."


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"has no config\.json"):
        read_spec(tmp_path)


def test_padded_logits_never_win() -> None:
    engine = TorchEngine(EngineSettings(TINY, device="cpu"))
    row = make_batch(((16,),))
    assert isinstance(engine.model, Decoder)
    with torch.no_grad():
        engine.model.lm_head.weight[TINY.vocab :] = 100 * engine.model.lm_head.weight[:1].abs()
        logits = engine.model.logits(DeviceBatch.of(row, engine.rotation, True))
    assert logits.shape == (1, 16, TINY.vocab)
    before = engine.evaluate(row).nats
    with torch.no_grad():
        engine.model.lm_head.weight[TINY.vocab :] = 0
    assert engine.evaluate(row).nats == before
    assert np.isfinite(before)

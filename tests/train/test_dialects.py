"""Other tools' configs train as they are, on small local data."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers

from tests.support.corpus import write_source
from tests.support.writers import write_npy
from trivium.run.events import read_events
from trivium.train.trainer import Trainer

FORGE = """
[model]
dim = 32
n_layers = 1
n_heads = 2
vocab_size = 512
max_seq_len = 16
[train]
batch_size = 4
seq_len = 16
max_steps = 6
compile_model = false
mixed_precision = "fp32"
[data]
tokenizer_path = "tokenizer.json"
"""
PATHS = {
    "mapped": 'dataset_path = "web"',
    "eager": 'hf_dataset_name = "table"',
    "streaming": 'hf_dataset_name = "table"\nhf_streaming = true',
    "mixture": (
        "mix_temperature = 2.0\nanneal_start_step = 3\nanneal_weights = { web = 0.0, table = 1.0 }\n"
        '[[data.datasets]]\nname = "web"\npath = "web"\nweight = 3.0\n'
        '[[data.datasets]]\nname = "table"\nhf_name = "table"\nweight = 1.0\n'
    ),
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_npy(tmp_path / "web/0.npy", [[5, 6, 7, 8] * 30] * 8)
    (tmp_path / "table").mkdir()
    texts = [json.dumps({"text": f"the heron waits for the tide {number} " * 3}) for number in range(60)]
    (tmp_path / "table/train.jsonl").write_text("\n".join(texts))
    inner = tokenizers.Tokenizer(tokenizers.models.BPE())
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        special_tokens=["<|endoftext|>"], initial_alphabet=alphabet, vocab_size=300
    )
    inner.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = tokenizers.decoders.ByteLevel()
    inner.train_from_iterator(texts, trainer)
    inner.save(str(tmp_path / "tokenizer.json"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRIVIUM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    return tmp_path


def train(file: str, *overrides: str) -> list[dict[str, Any]]:
    """Train a config to its end; the events of its steps."""
    here = ["run.name=theirs", "run.folder=runs", "engine.device=cpu", *overrides]
    trainer = Trainer(file, here, world_size=1, show=False).run()
    assert trainer.finished
    return [event for event in read_events(Path("runs/theirs/events.jsonl")) if event["event"] == "step"]


def sources(steps: list[dict[str, Any]]) -> list[list[str]]:
    return [sorted(step["loss_tokens_by_source"]) for step in steps]


@pytest.mark.slow
@pytest.mark.parametrize("path", PATHS)
def test_every_path_of_kempnerforge_trains(folder: Path, path: str) -> None:
    (folder / "their.toml").write_text(FORGE + PATHS[path])
    steps = train("their.toml")
    assert len(steps) == 6
    if path == "mixture":
        assert sources(steps) == [["table", "web"]] * 3 + [["table"]] * 3


@pytest.mark.slow
def test_stages_of_nanotron_train(folder: Path) -> None:
    for name in ("web", "talk"):
        write_source(folder / "ds" / name, [[12] * 40], "uint16")
    (folder / "their.yaml").write_text(
        """
general: {run: tron, seed: 1}
parallelism: {dp: 1, tp: 1, pp: 1}
tokens: {sequence_length: 16, train_steps: 6, micro_batch_size: 4, batch_accumulation_per_replica: 1}
data_stages:
- {name: first, start_training_step: 1, data: {seed: 1, dataset: {dataset_folder: ds/web}}}
- {name: second, start_training_step: 4, sequence_length: 32, data: {seed: 2, dataset: {dataset_folder: ds/talk}}}
model:
  model_config: {hidden_size: 32, num_hidden_layers: 1, num_attention_heads: 2, intermediate_size: 64, vocab_size: 1024}
optimizer:
  learning_rate_scheduler: {learning_rate: 1.0e-3}
"""
    )
    assert sources(train("their.yaml")) == [["web"]] * 3 + [["talk"]] * 3


@pytest.mark.slow
def test_stages_of_theseus_train_on_both_of_its_forms(folder: Path) -> None:
    (folder / "data/fineweb").mkdir(parents=True)
    (folder / "data/mnli").mkdir(parents=True)
    for part in ("train", "val"):
        np.arange(4000, dtype=np.uint32).__mod__(500).tofile(folder / f"data/fineweb/{part}.bin")
    rows = np.tile(np.arange(1, 33, dtype=np.uint32), (40, 1))
    for part in ("train", "val"):
        rows.tofile(folder / f"data/mnli/{part}.bin")
        (np.tile(np.arange(32) >= 16, (40, 1)) & (rows > 0)).tofile(folder / f"data/mnli/{part}.bin.mask")
    (folder / "data/mnli/shape.json").write_text(json.dumps({"train": [40, 32], "val": [40, 32]}))
    (folder / "their.yaml").write_text(
        """
architecture: {block_size: 32, vocab_size: 512}
training/batch_size: 4
training/per_device_batch_size: 2
training/tokens: [512, 512]
training/dataset:
- - {name: fineweb, rate: 1.0, style: PMD, suffix: ''}
- - {name: mnli, rate: 1.0, style: PADDED, suffix: ''}
optimization: {lr: 0.001, kl: {beta: 0.1}}
"""
    )
    steps = train("their.yaml", "model.layers=1", "model.width=32", "model.heads=2")
    assert sources(steps) == [["fineweb"]] * 4 + [["mnli"]] * 4
    assert ["kl" in step["extra"] for step in steps] == [False] * 4 + [True] * 4

"""A config for torchtitan's `--module` and `--config`: a llama of 2 layers on a CPU.

Beside it metrics that keep every digit, and a hash of every row that a rank is given, both in files of the dump folder.

Imported in the environment of torchtitan 0.3 alone.
"""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchtitan.components.checkpoint import CheckpointManager
from torchtitan.components.loss import CrossEntropyLoss
from torchtitan.components.metrics import BaseLogger, MetricsProcessor
from torchtitan.components.optimizer import default_adamw
from torchtitan.config import ParallelismConfig, TrainingConfig
from torchtitan.models.common import ComplexRoPE, Embedding, Linear, RMSNorm
from torchtitan.models.llama3 import _build_llama3_layers, model_registry
from torchtitan.models.llama3.model import Llama3Model
from torchtitan.trainer import Trainer

from tests.support.titan_runs import hash_row
from trivium.adapters.torchtitan import staged
from trivium.adapters.torchtitan.data import StagedDataLoader

LAYERS, WIDTH, HEADS, FFN, VOCAB = 2, 64, 4, 128, 512


class Lines(BaseLogger):
    """Appends the figures of a step to a file, as JSON."""

    def __init__(self, folder: str) -> None:
        self.path = Path(folder, "figures.jsonl")

    def log(self, metrics: dict[str, Any], step: int) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a") as file:
            file.write(json.dumps({"step": step, **metrics}) + "\n")


class WrittenMetrics(MetricsProcessor):
    """torchtitan's, with such a file of the rank that sees the loss."""

    @dataclass(kw_only=True, slots=True)
    class Config(MetricsProcessor.Config):
        pass

    def __init__(self, config: Config, *, dump_folder: str, **parts: Any) -> None:
        super().__init__(config, dump_folder=dump_folder, **parts)
        dims = parts["parallel_dims"]
        if not dims.pp_enabled or dims.get_mesh("pp").get_local_rank() == dims.pp - 1:
            self.logger = Lines(dump_folder)


def _written_rows(self: StagedDataLoader) -> Iterator[Any]:
    with Path(f"rows-{os.environ['RANK']}.txt").open("a") as file:
        for inputs, targets in _passes(self):
            for row in zip(inputs["input"], targets, inputs["positions"], strict=True):
                file.write(hash_row(*(each.numpy() for each in row)) + "\n")
            yield inputs, targets


_passes = StagedDataLoader.__iter__
StagedDataLoader.__iter__ = _written_rows  # type: ignore[method-assign]


def tiny_in_stages() -> Any:
    """What a user writes for torchtitan's own entry point."""
    return staged(tiny(), "../run.toml")


def tiny() -> Trainer.Config:
    """2 layers of width 64; 512 tokens in one pass; a checkpoint at the end of a launch."""
    spec = model_registry("debugmodel")
    layers = _build_llama3_layers(
        n_layers=LAYERS,
        dim=WIDTH,
        n_heads=HEADS,
        hidden_dim=FFN,
        rope=ComplexRoPE.Config(dim=WIDTH // HEADS, max_seq_len=1024, theta=10_000),
        attn_backend="flex",
    )
    debug = spec.model
    spec.model = Llama3Model.Config(
        dim=WIDTH,
        vocab_size=VOCAB,
        tok_embeddings=Embedding.Config(
            num_embeddings=VOCAB, embedding_dim=WIDTH, param_init=debug.tok_embeddings.param_init
        ),
        norm=RMSNorm.Config(normalized_shape=WIDTH, param_init=debug.norm.param_init),
        lm_head=Linear.Config(in_features=WIDTH, out_features=VOCAB, param_init=debug.lm_head.param_init),
        layers=layers,
    )
    return Trainer.Config(
        model_spec=spec,
        loss=CrossEntropyLoss.Config(global_vocab_size=VOCAB),
        optimizer=default_adamw(lr=1e-3),
        training=TrainingConfig(local_batch_size=8, seq_len=64, mixed_precision_param="float32"),
        parallelism=ParallelismConfig(pipeline_parallel_schedule="1F1B", pipeline_parallel_microbatch_size=2),
        metrics=WrittenMetrics.Config(log_freq=1),
        checkpoint=CheckpointManager.Config(enable=True, interval=100, last_save_model_only=False, keep_latest_k=0),
        activation_checkpoint=None,
    )

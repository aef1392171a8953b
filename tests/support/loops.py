"""A run in three stages that other loops can train, and the rows of its steps by hash."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from tests.support.events import steps_taken
from tests.support.training import SMALL_MODEL, train, write_sources
from trivium.config.load import load_config
from trivium.loader.loader import Loader
from trivium.plan.make import make_plan
from trivium.plan.plan import Plan
from trivium.rows.batch import Batch

THREE_STAGES = (
    SMALL_MODEL
    + """
vocab = 512
ffn = 64
[optimizer]
lr = 0.003
weight_decay = 0.0
grad_clip = 1.0
[schedule]
shape = "cosine"
warmup = { steps = 3 }
[sources.web]
kind = "tokens"
path = "web"
[sources.code]
kind = "tokens"
path = "code"
[[stages]]
name = "one"
steps = 5
mixture = { web = 0.75, code = 0.25 }
seq_len = 16
batch_size = 8
[[stages]]
name = "two"
steps = 4
mixture = { web = 0.5, code = 0.5 }
fade = { steps = 2 }
seq_len = 32
batch_size = 4
lr = { scale = 0.5 }
goldfish = { k = 4, h = 3 }
[[stages]]
name = "three"
steps = 4
mixture = { code = 0.5, web = 0.5 }
seq_len = 16
batch_size = 12
packing = "concat"
document_mask = false
loss_weight = { code = 0 }
"""
)


def write_three_stages(folder: Path) -> None:
    """Two sources and the config, as run.toml."""
    write_sources(folder)
    (folder / "run.toml").write_text(THREE_STAGES)


def three_stages(*overrides: str) -> Plan:
    """The plan of the current folder's run.toml."""
    return make_plan(load_config("run.toml", overrides))


def digest(*arrays: Any) -> str:
    """A hash of arrays or tensors, as int32."""
    whole = xxhash.xxh128()
    for array in arrays:
        whole.update(np.ascontiguousarray(np.asarray(array), np.int32).tobytes())
    return whole.hexdigest()


def row_hashes(plan: Plan, world_size: int = 1) -> list[list[str]]:
    """By step, the hash of the tokens of every row of the Loader, whose rows of all ranks are those of one."""
    loaders = [Loader(plan, rank, world_size) for rank in range(world_size)]
    return [
        [each for loader in loaders for each in hash_rows(loader.batch(step).tokens)] for step in range(len(loaders[0]))
    ]


def hash_rows(tokens: Iterable[Any]) -> list[str]:
    """The hash of each row of tokens."""
    return [digest(row) for row in tokens]


def target_hashes(batches: Iterable[Batch]) -> list[str]:
    """The hash of each batch's targets and positions."""
    return [digest(batch.targets, batch.positions) for batch in batches]


def write_tiny_llama(folder: Path) -> None:
    """A Llama of transformers with random weights, in the shape of the run's model: `model.init` for both loops."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=512,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=64,
        rms_norm_eps=1e-5,
        bos_token_id=None,
        eos_token_id=None,
        use_cache=False,
    )
    LlamaForCausalLM(config).save_pretrained(folder)  # type: ignore[no-untyped-call]


def own_losses(*overrides: str) -> list[float]:
    """What our Trainer minimises, step by step, from the weights in `base`; in stage three the loss of web alone."""
    train("model={ init = 'base' }", "checkpoint.every=100", *overrides)
    taken = steps_taken(Path("runs/run/events.jsonl")).values()
    return [event["loss_by_source"]["web"] if event["step"] > 9 else event["loss"] for event in taken]

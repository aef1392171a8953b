"""A small config of nanotron, and what the tests of its dialect ask of it."""

import copy
from pathlib import Path
from typing import Any

import yaml

from tests.support.dialects import refusal

WEB = {"dataset_folder": "data/web"}
BASE: dict[str, Any] = {
    "general": {"run": "small", "seed": 42},
    "parallelism": {"dp": 2, "tp": 1, "pp": 1},
    "tokens": {"sequence_length": 256, "train_steps": 20, "micro_batch_size": 4, "batch_accumulation_per_replica": 3},
    "data_stages": [
        {"name": "first", "start_training_step": 1, "data": {"dataset": WEB, "seed": 5}},
        {"name": "second", "start_training_step": 11, "data": {"dataset": WEB, "seed": 6}},
    ],
    "model": {"model_config": {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4}},
    "optimizer": {"learning_rate_scheduler": {"learning_rate": 1e-3}},
}
DATASET = ("data_stages", 1, "data", "dataset")


def written(file: Path, changes: dict[tuple[str | int, ...], Any] | None = None) -> Path:
    """The base with other values at some paths; None takes a key out."""
    tables = copy.deepcopy(BASE)
    for path, value in (changes or {}).items():
        table: Any = tables
        for part in path[:-1]:
            table = table[part] if isinstance(part, int) else table.setdefault(part, {})
        table[path[-1]] = value
    file.write_text(yaml.safe_dump(tables))
    return file


def their_problems(file: Path) -> list[str]:
    """The problems of a config by nanotron's own keys, without those of our tables that follow from them."""
    return [said for said in refusal(file) if not said.startswith(("stages", "sources"))]

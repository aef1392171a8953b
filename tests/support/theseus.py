"""A small config of theseus, and what the tests of its dialect ask of it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.support.dialects import notes as all_notes
from tests.support.dialects import refusal as problems_of
from trivium.config.load import Loaded
from trivium.config.load import load as load_theirs
from trivium.plan.make import make_plan
from trivium.plan.plan import Plan

PMD = {"name": "fineweb", "rate": 1.0, "style": "PMD", "suffix": ""}
PADDED = {"name": "mnli", "rate": 1.0, "style": "PADDED"}
BASE: dict[str, Any] = {
    "architecture/n_embd": 256,
    "architecture/n_layers": 4,
    "architecture/n_head": 4,
    "architecture/block_size": 512,
    "training/batch_size": 8,
    "training/tokens": [409_600, 40_960],
    "training/dataset": [[PMD], [PADDED]],
    "training/validation": False,
}
OURS = ("model.size=tiny",)
GPT_NOTE = (
    "job: is a GPT there: LayerNorm, an ungated GELU and biases. "
    "The overrides give another model: RMSNorm, a gated SiLU and no biases."
)
LLAMA: dict[str, Any] = {
    "job": "llama/train/pretrain",
    "architecture__attention_bias": False,
    "architecture__rope_theta": 5e5,
}
FOLDER = (
    'training/dataset: their data folder is not in the config: taken as "data". '
    "Elsewhere: sources.fineweb.path=/path/fineweb/train.bin."
)


def written(file: Path, **keys: Any) -> Path:
    """The base with other keys, their slashes written as two underscores; None takes one out."""
    others = {key.replace("__", "/"): value for key, value in keys.items()}
    file.write_text(yaml.safe_dump({key: value for key, value in (BASE | others).items() if value is not None}))
    return file


def load(file: Path, overrides: Sequence[str] = OURS) -> Loaded:
    return load_theirs(file, overrides)


def plan_of(file: Path) -> Plan:
    return make_plan(load(file).config)


def notes(file: Path) -> list[str]:
    """All notes but the one about a GPT."""
    return [note for note in all_notes(file, overrides=OURS) if note != GPT_NOTE]


def refusal(file: Path, overrides: Sequence[str] = OURS) -> list[str]:
    return problems_of(file, overrides=overrides)

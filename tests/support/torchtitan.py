"""Small configs of torchtitan, and what the tests of its dialect ask of them."""

from pathlib import Path
from typing import Any

import tomli_w

from tests.support import dialects
from trivium.config.load import Loaded, load
from trivium.plan.plan import Plan

TRAINING = """
[lr_scheduler]
warmup_steps = 2

[training]
steps = 20
global_batch_size = 8
"""


def stage(name: str, start: int, *fields: str, end: int | None = None) -> str:
    """A nanoset stage over data/web, unless its fields say something else."""
    written = {line.split(" = ")[0] for line in fields}
    usual = ('dataset_type = "nanoset"', 'dataset_folders = ["data/web"]', "seq_len = 512")
    lines = [f'name = "{name}"', f"start_step = {start}"]
    lines += [] if end is None else [f"end_step = {end}"]
    lines += [line for line in usual if line.split(" = ")[0] not in written]
    lines += [line for line in fields if not line.endswith(" = absent")]
    return "[[training.data_stages]]\n" + "\n".join(lines) + "\n\n"


def read(file: Path, *parts: str, training: str = TRAINING, **settings: Any) -> Loaded:
    file.write_text(training + "\n".join(parts))
    return load(file, **settings)


def plan_of(file: Path, *parts: str, training: str = TRAINING, **settings: Any) -> Plan:
    file.write_text(training + "\n".join(parts))
    return dialects.plan_of(file, **settings)


def notes(file: Path, *parts: str, training: str = TRAINING, **settings: Any) -> list[str]:
    file.write_text(training + "\n".join(parts))
    return dialects.notes(file, **settings)


def refusal(file: Path, *parts: str, training: str = TRAINING, **settings: Any) -> list[str]:
    file.write_text(training + "\n".join(parts))
    return dialects.refusal(file, **settings)


def tables(keys: dict[str, dict[str, Any]]) -> str:
    """The keys as TOML, table by table."""
    nested: dict[str, Any] = {}
    for table, values in keys.items():
        inner = nested
        for part in filter(None, table.split(".")):
            inner = inner.setdefault(part, {})
        inner.update(values)
    return tomli_w.dumps(nested)

"""A sound config, and a way to change it key by key."""

import tomllib
from typing import Any

BASE = """
[run]
name = "base"

[model]
size = "tiny"

[sources.web]
kind = "tokens"
path = "data/web"

[sources.code]
kind = "tokens"
path = "data/code"

[[stages]]
name = "general"
steps = 100
mixture = { web = 0.8, code = 0.2 }

[[stages]]
name = "long"
steps = 50
mixture = { web = 0.5, code = 0.5 }
seq_len = 4096
"""
TWO_STEPS = """
run.name = "run"
model = { layers = 1, width = 32, heads = 2, vocab = 300 }
tokenizer.kind = "bytes"
optimizer.lr = 0.001
schedule.shape = "constant"
engine.device = "cpu"
sources.web = { kind = "KIND", path = "data" }
[[stages]]
name = "one"
steps = 2
seq_len = 16
batch_size = 2
"""


def base(*changes: str) -> dict[str, Any]:
    """The raw tables of BASE with some changes: `stages.0.steps = 5` sets a key, `- stages.0.steps` removes it."""
    raw = tomllib.loads(BASE)
    for change in changes:
        key, _, value = change.removeprefix("- ").partition(" = ")
        *above, last = key.split(".")
        table: Any = raw
        for part in above:
            table = table[int(part)] if isinstance(table, list) else table.setdefault(part, {})
        if change.startswith("- "):
            del table[last]
        else:
            table[last] = tomllib.loads(f"value = {value}")["value"]
    return raw


def two_steps(kind: str) -> str:
    """A config of two steps that reads a source of this kind in the folder data."""
    return TWO_STEPS.replace("KIND", kind)

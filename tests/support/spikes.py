"""A run that spikes: documents are rolls of a die, which are soon known as well as they can be, and one is garbage."""

import json
import random
from pathlib import Path

from trivium.train.trainer import Trainer

GARBAGE = 123  # the document; its line is the one after
SPIKE = 53  # the step that reads it
CONFIG = """
[run]
name = "base"
[engine]
device = "cpu"
[model]
layers = 2
width = 64
heads = 4
[tokenizer]
kind = "bytes"
[optimizer]
lr = 0.01
[checkpoint]
every = 20
[sources.web]
kind = "text"
path = "web.jsonl"
[[stages]]
name = "general"
steps = 60
seq_len = 96
batch_size = 8
mixture = { web = 1.0 }
"""


def write_spike(folder: Path) -> None:
    """The config, and the source with one document of garbage."""
    rng = random.Random(5)
    lines = []
    for number in range(500):
        text = " ".join(str(rng.randrange(1, 7)) for _ in range(40))
        if number == GARBAGE:
            text = "".join(chr(rng.randrange(58, 127)) for _ in range(80))
        lines.append(json.dumps({"text": text}) + "\n")
    (folder / "web.jsonl").write_text("".join(lines))
    (folder / "run.toml").write_text(CONFIG)


def spiked_run(folder: Path, *overrides: str) -> Path:
    """Train it; the process works in that folder."""
    write_spike(folder)
    Trainer("run.toml", overrides, show=False).run()
    return Path("runs/base")

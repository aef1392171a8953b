"""A run that spikes: the one of docs/why.md, whose documents are rolls of a die, but for one."""

import json
import random
import shutil
from pathlib import Path

from tests.support.scripts import ROOT, make_data
from trivium.train.trainer import Trainer

GARBAGE = 329  # the document; its line is the one after
SPIKE = 47  # the step that reads it


def spiked_run(folder: Path, *overrides: str) -> Path:
    """Train it; the process works in that folder."""
    made = make_data()
    assert made.GARBAGE == GARBAGE
    made.write_dice(folder / "examples/data/dice.jsonl", random.Random("dice"))
    shutil.copy(ROOT / "examples/dice.toml", folder / "examples/dice.toml")
    Trainer("examples/dice.toml", overrides, show=False).run()
    return Path("runs/dice")


def garbage() -> str:
    """The text of the document, from that folder."""
    line = Path("examples/data/dice.jsonl").read_text().splitlines()[GARBAGE]
    text: str = json.loads(line)["text"]
    return text

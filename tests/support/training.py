"""Runs of a second or two that train: configs, their sources, and what is read from the run afterwards."""

from pathlib import Path
from typing import Any

import numpy as np

from tests.support.corpus import write_source
from tests.support.events import steps_taken
from trivium.engine.base import StepStats
from trivium.run.events import read_events
from trivium.train.trainer import Trainer

# The beginning of a config; it ends within [model], so that more keys of the model may follow.
SMALL_MODEL = """
[run]
name = "run"
[engine]
device = "cpu"
[model]
layers = 1
width = 32
heads = 2
"""
# One source of text in bytes; the stages follow.
BYTE_RUN = """
[run]
name = "small"
[model]
layers = 1
width = 32
heads = 2
[engine]
device = "cpu"
[tokenizer]
kind = "bytes"
[sources.pages]
kind = "text"
path = "pages.jsonl"
"""
# What `write_sources` writes.
WEB_AND_CODE = """
[sources.web]
kind = "tokens"
path = "web"
validation = 0.2
[sources.code]
kind = "tokens"
path = "code"
"""
FOUR_STAGES = (
    SMALL_MODEL
    + """
vocab = 512
[optimizer]
lr = 0.003
grad_clip = 1.0
[schedule]
shape = "cosine"
warmup = { steps = 3 }
[checkpoint]
every = 3
keep = 2
[evaluate]
every = 5
tokens = 200
"""
    + WEB_AND_CODE
    + """
[[stages]]
name = "one"
steps = 6
mixture = { web = 0.75, code = 0.25 }
seq_len = 16
batch_size = 8
[[stages]]
name = "two"
steps = 5
mixture = { web = 0.5, code = 0.5 }
fade = { steps = 2 }
seq_len = 32
batch_size = 4
loss_weight = { code = 0.5 }
rope = { theta = 50_000 }
lr = { scale = 0.5 }
evaluate = true
[[stages]]
name = "three"
steps = 4
mixture = { code = 1.0 }
seq_len = 16
batch_size = 6
packing = "concat"
document_mask = false
reset_optimizer = true
[[stages]]
name = "four"
steps = 4
mixture = { web = 1.0 }
seq_len = 16
batch_size = 4
z_loss = 1e-4
goldfish = { k = 4, h = 3 }
lr = { shape = "linear" }
"""
)
REFERENCES = (
    SMALL_MODEL
    + """
vocab = 512
init_std = 0.3
[optimizer]
lr = 0.01
[schedule]
shape = "constant"
[checkpoint]
every = 4
keep = 1
[sources.web]
kind = "tokens"
path = "web"
validation = 0.2
[evaluate]
tokens = 200
[[stages]]
name = "general"
steps = 5
seq_len = 16
batch_size = 8
[[stages]]
name = "anchored"
steps = 5
seq_len = 16
batch_size = 4
rope = { theta = 50_000 }
kl = { beta = 0.5 }
[[stages]]
name = "same"
steps = 4
seq_len = 16
batch_size = 4
kl = { beta = 0.2, direction = "reverse", reference = { stage = "anchored" } }
[[stages]]
name = "fresh"
steps = 3
seq_len = 16
batch_size = 4
kl = { beta = 0.2 }
[[stages]]
name = "free"
steps = 2
seq_len = 16
batch_size = 4
"""
)
KL_BY_STAGE = {  # a cadence save falls on the beginning of stage two, and none on that of stage three
    "two": "kl = { beta = 0.1 }",
    "three": 'kl = { beta = 0.1, direction = "reverse" }',
    "four": 'kl = { beta = 0.1, reference = { stage = "two" } }',
}


class StoppingTrainer(Trainer):
    """Stops when it has taken `stop_at` steps."""

    stop_at = -1

    def on_step(self, step: int, stats: StepStats) -> None:
        self.stopping = step + 1 == self.stop_at


def write_sources(folder: Path) -> None:
    """Two sources of twenty documents."""
    rng = np.random.default_rng(0)
    for name in ("web", "code"):
        write_source(folder / name, [rng.integers(2, 24, 20).tolist()], "uint16")


def write_four_stages(folder: Path) -> None:
    """Two sources and a config of four stages."""
    write_sources(folder)
    (folder / "run.toml").write_text(FOUR_STAGES)


def write_kl_stages(folder: Path) -> None:
    """The same with KL in three stages, and batches that four ranks can share."""
    write_sources(folder)
    config = FOUR_STAGES.replace("batch_size = 6", "batch_size = 8")
    for stage, line in KL_BY_STAGE.items():
        config = config.replace(f'name = "{stage}"\n', f'name = "{stage}"\n{line}\n')
    (folder / "run.toml").write_text(config)


def write_references(folder: Path) -> None:
    """A source, and a config of five stages, three of them with KL."""
    write_source(folder / "web", [np.random.default_rng(0).integers(2, 24, 40).tolist()], "uint16")
    (folder / "run.toml").write_text(REFERENCES)


def train(*overrides: str, **settings: Any) -> Trainer:
    """Train the folder's run.toml to its end."""
    return Trainer("run.toml", overrides, show=False, **settings).run()


def events(kind: str, run_name: str = "run") -> list[dict[str, Any]]:
    """A run's events of one kind."""
    return [event for event in read_events(Path("runs", run_name, "events.jsonl")) if event["event"] == kind]


def losses(run_name: str = "run") -> dict[int, float]:
    """The loss of each step that a run took."""
    return {step: event["loss"] for step, event in steps_taken(Path("runs") / run_name / "events.jsonl").items()}

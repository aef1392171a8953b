"""What is killed: a command in a folder of its own, its input beside that folder, and what its end is compared by.

Models are tiny, and start-up is most of a launch. A run saves every few steps and keeps its last two checkpoints and
the boundaries of stages; the one that it is compared with is never disturbed, and keeps a checkpoint of every step.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from tests.chaos.compare import compare_folders, compare_runs
from tests.support.batches import TINY
from tests.support.streams import write_jsonl
from tests.support.training import SMALL_MODEL, write_sources
from trivium.engine.base import EngineSettings
from trivium.engine.make import make_engine
from trivium.prove.compare import Comparison

KEEPS_ALL = ("checkpoint.every=1", "checkpoint.keep=1000")
HEAD = (
    SMALL_MODEL
    + """
vocab = 512
[tokenizer]
kind = "bytes"
[optimizer]
lr = 0.003
[schedule]
shape = "cosine"
warmup = { steps = 3 }
[evaluate]
every = 9
tokens = 200
weights = "both"
[sources.web]
kind = "tokens"
path = "../web"
validation = 0.2
[sources.code]
kind = "tokens"
path = "../code"
"""
)
OLMOE = 'family = "olmoe"\noptions = { num_experts = 4, num_experts_per_tok = 2 }'
STAGES = """
[sources.pages]
kind = "text"
path = "../pages.jsonl"
[sources.spell]
kind = "chat"
task = "spelling"
size = 40
[[stages]]
name = "general"
steps = 40
mixture = { web = 0.5, code = 0.25, pages = 0.25 }
seq_len = 16
batch_size = 8
average = { last = 3, every = { steps = 7 }, weights = "1-sqrt" }
[[stages]]
name = "long"
steps = 40
mixture = { code = 0.5, pages = 0.5 }
fade = { steps = 20 }
seq_len = 64
batch_size = 4
rope = { theta = 50_000 }
kl = { beta = 0.1 }
evaluate = true
[[stages]]
name = "talk"
steps = 40
mixture = { spell = 0.75, web = 0.25 }
seq_len = 32
batch_size = 4
kl = { beta = 0.1, direction = "reverse", reference = { stage = "long" } }
reset_optimizer = true
average = { ema = 0.9 }
freeze = ["embedding", "layers.0.attention"]
vocab = 520
[[stages]]
name = "end"
start_from = "average"
steps = 30
mixture = { web = 1.0 }
seq_len = 16
batch_size = 4
packing = "concat"
lr = { shape = "linear" }
freeze = ["layers.0.feed_forward"]
vocab = 600
distill = { path = "../teacher", beta = 0.5, temperature = 2, top_k = 20 }
"""
STREAMS = """
[sources.flow]
kind = "stream"
dataset = "../flow"
lanes = 3
shuffle_buffer = 6
[[stages]]
name = "one"
until = { validation = "web", below = 5.8, at_most = { steps = 60 } }
average = { last = 2, every = 2000 }
mixture = { flow = 0.75, code = 0.25 }
seq_len = 16
batch_size = 8
[[stages]]
name = "two"
steps = 50
mixture = { flow = 0.5, web = 0.5 }
fade = { steps = 20 }
seq_len = 32
batch_size = 4
packing = "concat"
"""
POINTS = "points = [{ steps = 0, lr = 0.1 }, { steps = 6, lr = 1.0 }, { tokens = 8_000, lr = 0.3 }]"
SHORT = """
[[stages]]
name = "one"
steps = 20
average = { ema = 0.9 }
mixture = { web = 0.75, code = 0.25 }
seq_len = 16
batch_size = 8
[[stages]]
name = "two"
steps = 20
mixture = { code = 1.0 }
fade = { steps = 5 }
seq_len = 32
batch_size = 4
rope = { theta = 50_000 }
kl = { beta = 0.1 }
freeze = ["layers.0"]
vocab = 600
distill = { path = "../teacher", beta = 0.5 }
"""
RECIPE = """
[[stages]]
name = "general"
until = { validation = "web", below = 5.5, at_most = { steps = 70 } }
mixture = { web = 0.5, code = 0.5 }
seq_len = 16
batch_size = { from = 4, to = 8, by = 2, over = 1000 }
average = { last = 3, every = { steps = 7 }, weights = "1-sqrt" }
[[stages]]
name = "long"
steps = 30
mixture = { code = 1.0 }
fade = { steps = 10 }
seq_len = 32
batch_size = 4
kl = { beta = 0.1 }
average = { ema = 0.9 }
[[stages]]
name = "end"
start_from = "average"
until = { validation = "all", below = 9.0, at_most = { steps = 30 } }
mixture = { web = 1.0 }
seq_len = 16
batch_size = 4
lr = { points = [{ steps = 0, lr = 0.5 }, { steps = 30, lr = 0.1 }] }
"""
TEACHER = replace(TINY, layers=3, width=48, heads=3, kv_heads=3, head_dim=16, vocab=600)


def write_input(folder: Path) -> None:
    """Token files, texts, a dataset to stream, and a teacher."""
    write_sources(folder)
    make_engine(EngineSettings(TEACHER, seed=3, device="cpu")).export(folder / "teacher")
    rng = np.random.default_rng(0)
    write_jsonl(folder / "flow", [rng.integers(6, 60, 30).tolist() for _ in range(2)])
    (folder / "pages.jsonl").write_bytes((folder / "flow/000.jsonl").read_bytes())


def write_texts(folder: Path) -> None:
    """Texts of 26 MB in two files, which are cut into shards of a megabyte."""
    rng = np.random.default_rng(0)
    words = [f"word{number:x}" for number in range(5000)]
    (folder / "texts").mkdir()
    for number in range(2):
        with open(folder / f"texts/{number}.jsonl", "w") as file:
            for _ in range(8000):
                text = " ".join(words[each] for each in rng.integers(0, len(words), 200))
                file.write(json.dumps({"text": text}) + "\n")


def begun_runs(folder: Path) -> int:
    """How often the run in this folder has begun to train."""
    events = folder / "runs/run/events.jsonl"
    return events.read_bytes().count(b'{"event": "started"') if events.exists() else 0


def begun_preparing(folder: Path) -> int:
    """When a file was last made or renamed in the folder of token files."""
    out = folder / "out"
    return out.stat().st_mtime_ns if out.exists() else 0


@dataclass(frozen=True, slots=True)
class Scenario:
    """A command, its input, and how its end is compared."""

    config: str = ""
    input: Callable[[Path], None] = write_input
    command: tuple[str, ...] = ("train", "run.toml")
    keeps_all: tuple[str, ...] = KEEPS_ALL  # in addition, of the command that others are compared with
    ranks: int = 1
    environment: Mapping[str, str] = field(default_factory=dict)
    begun: Callable[[Path], int] = begun_runs  # changes when a launch begins to work
    compare: Callable[[Path, Path], Comparison] = compare_runs
    victims: Sequence[str] = ("main",)  # of a kill: the process, a rank, a worker, or all of them
    stops: bool = True  # after a step when it is told to, with an exit code that asks for another launch
    loses: str | None = None  # the folder that is lost now and then
    share: int = 3  # of all kills


def settings(every: int) -> str:
    """The table of a config for checkpoints."""
    return f"[checkpoint]\nevery = {every}\nkeep = 2\n"


SCENARIOS: dict[str, Scenario] = {
    "torch": Scenario(HEAD + settings(5) + STAGES, share=5),
    "ranks": Scenario(HEAD + settings(5) + STAGES, ranks=2, victims=("one", "one", "all")),
    "transformers": Scenario(HEAD.replace("[model]", f"[model]\n{OLMOE}") + settings(5) + STAGES),
    "jax": Scenario(
        HEAD.replace("[engine]", '[engine]\nname = "jax"') + settings(4) + SHORT,
        environment={
            "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
            "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
            "JAX_COMPILATION_CACHE_DIR": "../compiled",  # of the run that is not disturbed
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        },
    ),
    "stream": Scenario(HEAD + settings(5) + STREAMS),
    "copy": Scenario(HEAD + settings(5) + 'copy_to = "copy"\nkeep_every = 20\n' + STAGES, loses="runs", share=4),
    # A ramp, averages, points and two stages that end on a figure.
    "recipe": Scenario(
        HEAD.replace('shape = "cosine"\nwarmup = { steps = 3 }', POINTS) + settings(5) + RECIPE,
        ranks=2,
        victims=("one", "one", "all"),
    ),
    "prepare": Scenario(
        input=write_texts,
        command=("prepare", "../texts", "--tokenizer", "bytes", "--out", "out", "--workers", "2"),
        keeps_all=(),
        begun=begun_preparing,
        stops=False,
        compare=compare_folders,
        victims=("main", "one", "one", "all"),
        share=6,
    ),
}

"""A run to measure: a small source, a config of one stage, and a Trainer that stops where it is told to."""

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trivium.config.load import validate
from trivium.config.schema import Config
from trivium.train.loop import Loop, take_steps
from trivium.train.trainer import Trainer

CLIP = 1.0


@dataclass(frozen=True, slots=True)
class Size:
    """Everything that `--small` makes smaller."""

    layers: int = 6
    width: int = 256
    vocab: int = 8192
    num_rows: int = 8
    seq_len: int = 512
    stretch: int = 8  # steps that are timed together
    peak_size: int = 2048  # of the matrices whose product is the peak
    long_rows: int = 2
    long_seq_len: int = 2048
    long_stretch: int = 3
    source_tokens: int = 4_000_000
    near_step: int = 100
    deep_step: int = 1_000_000

    @property
    def model(self) -> dict[str, int]:
        """The config's `[model]`."""
        return {"layers": self.layers, "width": self.width, "vocab": self.vocab}

    @property
    def plain(self) -> dict[str, int]:
        """As it crosses to another process."""
        return asdict(self)


SMALL = Size(
    layers=2,
    width=64,
    vocab=512,
    num_rows=4,
    seq_len=64,
    stretch=2,
    peak_size=256,
    long_seq_len=256,
    long_stretch=1,
    source_tokens=100_000,
    deep_step=10_000,
)


def lengths_of(mean: int, tokens: int) -> NDArray[np.int64]:
    """Web-like lengths (lognormal, most of them under the mean) of documents that add up to `tokens`."""
    sigma = 1.1
    drawn = np.random.default_rng(mean).lognormal(np.log(mean) - sigma**2 / 2, sigma, 2 * tokens // mean + 100)
    lengths = np.maximum(1, np.rint(drawn)).astype(np.int64)
    ends = np.cumsum(lengths)
    last = int(np.searchsorted(ends, tokens))
    assert last < len(ends), "as many documents were drawn as are needed"
    lengths[last] -= ends[last] - tokens
    return lengths[: last + 1]


def make_source(folder: Path, size: Size, mean_document: int) -> Path:
    """Random tokens in documents of a mean length, unless they are there."""
    path = folder / f"documents-of-{mean_document}"
    if not path.exists():
        path.mkdir(parents=True)
        tokens = np.random.default_rng(0).integers(1, size.vocab, size.source_tokens, np.uint16)
        tokens.tofile(path / "000.ds")
        np.cumsum(lengths_of(mean_document, size.source_tokens)).astype("<u8").tofile(path / "000.ds.index")
        (path / "000.ds.metadata").write_text(f"random|2\n{size.source_tokens}\n")
    return path


def make_config(
    folder: Path,
    size: Size,
    *,
    name: str,
    steps: int,
    mean_document: int = 512,
    stage: Mapping[str, Any] | None = None,
    checkpoint: Mapping[str, Any] | None = None,
    engine: str = "torch",
    model: Mapping[str, Any] | None = None,
) -> Config:
    """A run of one stage in float32; documents are joined, so that a step is the work of a step on random rows."""
    rows = {"seq_len": size.seq_len, "batch_size": size.num_rows, "document_mask": False}
    raw = {
        "run": {"name": name, "folder": str(folder / "runs")},
        "model": dict(model or size.model),
        "optimizer": {"grad_clip": CLIP},
        "engine": {"name": engine, "device": "cpu", "precision": "float32"},
        "checkpoint": dict(checkpoint or {}),
        "sources": {"web": {"kind": "tokens", "path": str(make_source(folder, size, mean_document))}},
        "stages": [{"name": "one", "steps": steps, "mixture": {"web": 1.0}, **rows, **(stage or {})}],
    }
    os.environ.setdefault("TRIVIUM_CACHE", str(folder / "cache"))
    return validate(raw, "benchmark.toml")[0]


class Stretches(Trainer):
    """Goes through the loop in stretches: each is the loop as it is, and ends without a checkpoint."""

    until = 0

    @property
    def done(self) -> bool:
        """Whether this stretch is over."""
        return self.step >= self.until

    def take(self, steps: int) -> None:
        """This many steps of the loop; a stretch is not the run's end."""
        self.until = self.step + steps
        take_steps(self, Loop(self, self.session))

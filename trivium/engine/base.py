"""The only door between training and a framework: what goes in, what comes out.

Arrays cross as NumPy, everything else as the small frozen values below; a stage, a plan and a config never
do. An engine is entered stage by stage and then stepped:

    engine.enter(stage)
    stats = engine.step(batch, plan.settings_at(step))
    engine.save(folder).wait()
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from trivium.data.batch import IGNORED, Batch
from trivium.engine.spec import ModelSpec, RopeSpec
from trivium.plan.plan import StepSettings

Precision = Literal["float32", "bfloat16"]
NoDecay = Literal["norms", "biases", "embeddings"]
OwnOptimizer = Callable[[Sequence[tuple[str, Any]]], Any]
"""Named parameters -> a `torch.optim.Optimizer`; the schedule multiplies each of its groups' learning rates."""


@dataclass(frozen=True, slots=True)
class OptimizerSettings:
    """What turns gradients into updates; learning rates, momentum and decay come with each step."""

    name: Literal["adamw", "muon"] = "adamw"
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    no_decay: tuple[NoDecay, ...] = ("norms", "biases", "embeddings")
    clip: float | None = None


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """All that an engine is made from."""

    spec: ModelSpec
    optimizer: OptimizerSettings = OptimizerSettings()
    seed: int = 1234
    device: str | None = None  # absent: found by the engine
    precision: Precision | None = None  # absent: bfloat16 on a GPU, float32 elsewhere
    micro_batch: int | None = None  # rows in one pass; absent: all of them
    compile: bool = False
    deterministic: bool = True
    recompute_activations: bool = False
    token_bytes: NDArray[np.integer] | None = None  # bytes of text in each token, for bits per byte
    own_optimizer: OwnOptimizer | None = None  # makes the updates instead; clipping stays as the settings say


@dataclass(frozen=True, slots=True)
class StageSettings:
    """What changes from stage to stage inside an engine."""

    seq_len: int
    rope: RopeSpec | None = None  # absent: the model's
    documents: Literal["masked", "joined"] = "masked"
    z_loss: float | None = None
    reset_optimizer: bool = False  # only where the stage begins: a resume in its middle says False


@dataclass(frozen=True, slots=True)
class StepStats:
    """What one update did; sums and counts are of learnt tokens, by the source's name."""

    loss: float  # nats a learnt token, plain cross-entropy; 0 where nothing is learnt
    learnt: int
    gradient_norm: float  # before clipping
    nats_by_source: Mapping[str, float]
    learnt_by_source: Mapping[str, int]
    extra: Mapping[str, float] = field(default_factory=dict)  # further terms of the objective, a learnt token
    left_out: str | None = None  # why no update was made, where none was

    @staticmethod
    def why_left_out(loss: float, gradient_norm: float, limit: float) -> str | None:
        """Why an update must not be made; None where it may."""
        if not isfinite(loss) or not isfinite(gradient_norm):
            return f"the loss is {loss:g} and the gradient's norm {gradient_norm:g}"
        return None if loss <= limit else f"the loss is {loss:.4f}, over the limit of {limit:.4f}"


@dataclass(frozen=True, slots=True)
class SourceFigures:
    """Summed loss and what it was summed over; bytes are None where no token's bytes are known."""

    nats: float
    tokens: int
    bytes: int | None


@dataclass(frozen=True, slots=True)
class EvalStats:
    """What a model that stands still makes of a batch, by source; add them up over batches."""

    by_source: Mapping[str, SourceFigures]

    @property
    def nats(self) -> float:
        """Summed over all sources."""
        return sum(figures.nats for figures in self.by_source.values())

    @property
    def tokens(self) -> int:
        """Learnt targets of all sources."""
        return sum(figures.tokens for figures in self.by_source.values())

    @property
    def bytes(self) -> int | None:
        """Bytes of text in them; None where they are not known."""
        known = [figures.bytes for figures in self.by_source.values() if figures.bytes is not None]
        return sum(known) if len(known) == len(self.by_source) else None


class SaveHandle(Protocol):
    """A save under way."""

    def done(self) -> bool:
        """Whether everything is written, or writing has failed."""

    def wait(self) -> None:
        """Return when everything is written; raise what went wrong."""


class Engine(Protocol):
    """Owner of arrays and devices."""

    def enter(self, stage: StageSettings) -> None:
        """Take over a stage's row length, rotary positions, documents and objective."""

    def step(self, batch: Batch, now: StepSettings) -> StepStats:
        """One update from one batch, in micro-batches that do not change it."""

    def evaluate(self, batch: Batch) -> EvalStats:
        """Plain cross-entropy of a batch; nothing is learnt."""

    def save(self, folder: Path, *, background: bool = True) -> SaveHandle:
        """Write weights, optimizer and random state; returns when training may go on. Wait to know it is whole."""

    def load(self, folder: Path) -> None:
        """Continue from what `save` wrote, exact to the bit."""

    def start_from(self, folder: Path) -> None:
        """Take the weights alone, from what `save` wrote or from a Hugging Face folder."""

    def peak_flops(self) -> float | None:
        """The device's FLOP/s at its best, where that is known or can be measured."""

    def export(self, folder: Path) -> None:
        """Write the weights in Hugging Face form, with the entered stage's rotary positions."""


def figures_by_source(
    batch: Batch, nats_by_row: NDArray[np.float64], token_bytes: NDArray[np.integer] | None = None
) -> dict[str, SourceFigures]:
    """Rows' summed losses -> figures of every source that has rows in the batch."""
    learnt = batch.targets != IGNORED
    tokens_by_row = learnt.sum(axis=1)
    bytes_by_row = None
    if token_bytes is not None:
        bytes_by_row = np.where(learnt, token_bytes[np.where(learnt, batch.targets, 0)], 0).sum(axis=1)
    figures = {}
    for number in np.unique(batch.source):
        rows = batch.source == number
        figures[batch.sources[number]] = SourceFigures(
            nats=float(nats_by_row[rows].sum()),
            tokens=int(tokens_by_row[rows].sum()),
            bytes=None if bytes_by_row is None else int(bytes_by_row[rows].sum()),
        )
    return figures

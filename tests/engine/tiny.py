"""Tiny engines, whatever the framework, and what the contracts ask of them."""

import hashlib
from abc import ABC, abstractmethod
from dataclasses import replace
from pathlib import Path

import numpy as np

from tests.support.batches import SEQ_LEN, TINY, VOCAB
from trivium.engine.base import (
    Direction,
    Engine,
    EngineSettings,
    OptimizerSettings,
    Precision,
    Recompute,
    StageSettings,
)
from trivium.rows.batch import IGNORED, Batch

STAGE = StageSettings(SEQ_LEN)
DIRECTIONS: list[Direction] = ["forward", "reverse", "nll_gap"]
OPTIMIZERS = [OptimizerSettings("adamw", grad_clip=1.0), OptimizerSettings("muon"), OptimizerSettings("ademamix")]


def nats_of(engine: Engine, batch: Batch) -> float:
    """Summed plain cross-entropy."""
    return engine.evaluate(batch).nats


def hash_of(engine: Engine, folder: Path) -> str:
    """Of everything that the engine saves: weights, optimizer and random state."""
    engine.save(folder).wait()
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return hashlib.blake2b(b"".join(path.name.encode() + path.read_bytes() for path in files)).hexdigest()


def only_learn(batch: Batch, segment: int) -> Batch:
    """The same rows with the targets of one document in each row."""
    return replace(batch, targets=np.where(batch.segments == segment, batch.targets, IGNORED))


def change_segment(batch: Batch, segment: int) -> Batch:
    """The same rows with other tokens in one document of each row, or in the padding."""
    return replace(batch, tokens=np.where(batch.segments == segment, (batch.tokens + 1) % VOCAB, batch.tokens))


class TinyEngines(ABC):
    """Inherit, and give `make`."""

    @abstractmethod
    def make(self, settings: EngineSettings) -> Engine:
        """An engine on the CPU."""

    def hash_of(self, engine: Engine, folder: Path) -> str:
        """Of everything that the engine saves, whatever else its files hold."""
        return hash_of(engine, folder)

    def tiny(
        self,
        optimizer: OptimizerSettings = OPTIMIZERS[0],
        precision: Precision = "float32",
        micro_batch_size: int | None = None,
        seed: int = 1,
        recompute: Recompute = "none",
    ) -> Engine:
        """A tiny engine that has entered a plain stage."""
        settings = EngineSettings(
            TINY,
            optimizer,
            seed,
            device="cpu",
            precision=precision,
            micro_batch_size=micro_batch_size,
            recompute=recompute,
            token_bytes=np.arange(VOCAB),
        )
        engine = self.make(settings)
        engine.enter(STAGE)
        return engine

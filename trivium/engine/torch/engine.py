"""Batches -> updates on one device: the Engine protocol in torch.

A step passes its micro-batches forward and backward, adding up gradients of an objective that was divided by
the learnt tokens of the whole batch beforehand, and then updates once. Micro-batches change the memory that
activations take and nothing else.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trivium.data.batch import Batch
from trivium.engine.base import EngineSettings, EvalStats, SaveHandle, StageSettings, StepStats, figures_by_source
from trivium.engine.folder import is_saved, refuse_other_model
from trivium.engine.peak import measured_peak, peak_of
from trivium.engine.torch import huggingface
from trivium.engine.torch.exact import exactly
from trivium.engine.torch.initial import initialise
from trivium.engine.torch.loss import Objective
from trivium.engine.torch.model import Decoder
from trivium.engine.torch.optim import Optimizers
from trivium.engine.torch.rotary import Rotation
from trivium.engine.torch.rows import Rows
from trivium.engine.torch.state import (
    OPTIMIZER,
    RANDOM,
    WEIGHTS,
    Writer,
    random_state,
    read_part,
    set_random_state,
)
from trivium.plan.plan import StepSettings

PEAK_SIZE = 1024  # of the matrices whose product shows a CPU's peak
PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class TorchEngine:
    """One process, one device; needs no launcher and no process group."""

    def __init__(self, settings: EngineSettings) -> None:
        self.settings = settings
        self.device = torch.device(settings.device or find_device())
        precision = PRECISIONS[settings.precision or ("bfloat16" if self.device.type == "cuda" else "float32")]
        if settings.deterministic and self.device.type == "cuda":
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS repeats its bits only with this
        with torch.device("meta"):
            self.model = Decoder(settings.spec, precision, settings.recompute_activations)
        self.model.to_empty(device=self.device)
        initialise(self.model, settings.seed)
        if settings.compile:
            for layer in self.model.layers:
                layer.compile(dynamic=False)
        self.optimizers = Optimizers(self.model, settings.optimizer, settings.own_optimizer)
        self.writer = Writer()
        self.stage = StageSettings(settings.spec.max_seq_len)
        self.enter(self.stage)

    def enter(self, stage: StageSettings) -> None:
        """Take over a stage's row length, rotary positions, documents and objective."""
        self.stage = stage
        self.rotation = self._rotation(stage.seq_len)
        if self.settings.compile:
            torch.compiler.reset()  # code compiled for earlier stages would change what a resume compiles, and its bits
        if stage.reset_optimizer:
            self.optimizers = Optimizers(self.model, self.settings.optimizer, self.settings.own_optimizer)

    def step(self, batch: Batch, now: StepSettings) -> StepStats:
        """One update from one batch."""
        with exactly(self.settings.deterministic):
            nats_by_row, z = self._gradients(batch)
            learnt = max(1, batch.learnt())
            loss, norm = float(nats_by_row.sum()) / learnt, self.optimizers.gradient_norm()
            left_out = StepStats.why_left_out(loss, norm.item(), now.loss_limit)
            if left_out is None:
                self.optimizers.step(now, norm)
            self.optimizers.forget()
        figures = figures_by_source(batch, nats_by_row)
        extra = {} if self.stage.z_loss is None else {"z_loss": self.stage.z_loss * z / learnt}
        return StepStats(
            loss=loss,
            learnt=batch.learnt(),
            gradient_norm=norm.item(),
            nats_by_source={source: part.nats for source, part in figures.items()},
            learnt_by_source={source: part.tokens for source, part in figures.items()},
            extra=extra,
            left_out=left_out,
        )

    @torch.no_grad()
    def evaluate(self, batch: Batch) -> EvalStats:
        """Plain cross-entropy of a batch; nothing is learnt."""
        with exactly(self.settings.deterministic):
            losses = [self.model(rows, Objective()) for rows in self._micro_batches(batch)]
        nats_by_row = _by_row([part.nats for part in losses], batch.seq_len)
        return EvalStats(figures_by_source(batch, nats_by_row, self.settings.token_bytes))

    def save(self, folder: Path, *, background: bool = True) -> SaveHandle:
        """Write weights, optimizer and random state; returns when training may go on."""
        weights = {name: parameter.detach() for name, parameter in self.model.named_parameters()}
        state = {WEIGHTS: weights, OPTIMIZER: dict(self.optimizers.state()), RANDOM: random_state()}
        return self.writer.save(folder, self.settings.spec, state, background=background)

    def load(self, folder: Path) -> None:
        """Continue from what `save` wrote, exact to the bit."""
        spec = self.settings.spec
        self.model.load_state_dict(read_part(folder, WEIGHTS, spec))
        optimizer = read_part(folder, OPTIMIZER, spec)
        self.optimizers.load({name: tensor.to(self.device, copy=True) for name, tensor in optimizer.items()})
        set_random_state(read_part(folder, RANDOM, spec))

    def start_from(self, folder: Path) -> None:
        """Take the weights alone, from what `save` wrote or from a Hugging Face folder."""
        if is_saved(folder):
            self.model.load_state_dict(read_part(folder, WEIGHTS, self.settings.spec))
        else:
            refuse_other_model(folder, self.settings.spec)
            huggingface.read_weights(self.model, folder)

    def peak_flops(self) -> float | None:
        """A GPU's peak from the table; a CPU's as a product of float32 matrices reaches it."""
        if self.device.type != "cpu":
            return peak_of(torch.cuda.get_device_name(self.device)) if self.device.type == "cuda" else None
        one, other = torch.ones(PEAK_SIZE, PEAK_SIZE), torch.ones(PEAK_SIZE, PEAK_SIZE)
        return measured_peak(lambda: one @ other, PEAK_SIZE)

    def export(self, folder: Path) -> None:
        """Write the weights in Hugging Face form, with the entered stage's rotary positions."""
        spec = self.settings.spec
        seq_len = max(spec.max_seq_len, self.stage.seq_len)
        huggingface.write_folder(self.model, self.stage.rope or spec.rope, seq_len, folder)

    def _gradients(self, batch: Batch) -> tuple[NDArray[np.float64], float]:
        """Leaves every parameter's gradient in place; gives nats by row and the summed squares of the z-loss."""
        objective = Objective(scale=1 / max(1, batch.learnt()), z_loss=self.stage.z_loss or 0.0)
        nats, z = [], []
        for rows in self._micro_batches(batch):
            losses = self.model(rows, objective)
            losses.objective.backward()
            nats.append(losses.nats)
            z.append(losses.z.sum())
        return _by_row(nats, batch.seq_len), float(torch.stack(z).sum().item())

    def _micro_batches(self, batch: Batch) -> Iterator[Rows]:
        table = self.rotation if batch.seq_len <= self.stage.seq_len else self._rotation(batch.seq_len)
        size = self.settings.micro_batch or batch.num_rows
        for start in range(0, batch.num_rows, size):
            yield Rows.of(batch.rows(start, start + size), table, self.stage.documents)

    def _rotation(self, seq_len: int) -> Rotation:
        spec = self.settings.spec
        return Rotation.table(self.stage.rope or spec.rope, spec.head_dim, seq_len, self.device)


def find_device() -> str:
    """The best device of this machine."""
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def _by_row(nats: list[Tensor], seq_len: int) -> NDArray[np.float64]:
    """Losses by token, of all micro-batches -> sums by row; the one time a step waits for the device."""
    by_token: NDArray[np.float32] = torch.cat(nats).cpu().numpy()
    by_row: NDArray[np.float64] = by_token.reshape(-1, seq_len).sum(axis=1, dtype=np.float64)
    return by_row

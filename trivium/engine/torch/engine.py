"""Batches -> updates: the Engine protocol in torch, on one device or shared by many ranks.

A step passes its micro-batches forward and backward, adding up gradients of an objective that was divided by
the loss tokens of the whole batch, on all ranks, beforehand, and then updates once. Micro-batches change the
memory that activations take and nothing else. A rank is given its own rows; figures are those of all ranks.
"""

import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils import deterministic

from trivium.engine.base import (
    EngineSettings,
    EvalStats,
    Generation,
    SaveHandle,
    StageSettings,
    StepSettings,
    StepStats,
    figures_by_source,
    refuse_misfits,
    refuse_too_long,
)
from trivium.engine.generation import WholeRowGeneration, padded_rows
from trivium.engine.peak import peak_of
from trivium.engine.torch import huggingface
from trivium.engine.torch.generation import TorchGeneration
from trivium.engine.torch.layers import Rotation
from trivium.engine.torch.loss import Losses, Objective, Penalty
from trivium.engine.torch.model import Decoder, DeviceBatch
from trivium.engine.torch.optim import Optimizers
from trivium.engine.torch.parallel import summed_figures
from trivium.engine.torch.reference import Reference
from trivium.engine.torch.state import (
    OPTIMIZER,
    RANDOM,
    WEIGHTS,
    StateWriter,
    load_random_state,
    random_state,
    read_into,
    refuse_other_weights,
    saved_tensors,
    under,
)
from trivium.engine.torch.weights import empty_model, engine_precision, fill, init_weights
from trivium.errors import ConfigError, Problem, UsageError
from trivium.model.folder import read_spec
from trivium.rows.batch import Batch
from trivium.seeds import derive_key


class TorchEngine:
    """One process on one device; without a launcher it needs no process group."""

    def __init__(self, settings: EngineSettings) -> None:
        self.settings = settings
        self.device = open_device(settings.device)
        if settings.deterministic and self.device.type == "cuda":
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS repeats its bits only with this
        self.held = empty_model(settings, self.device, engine_precision(settings, self.device))
        self.model = self.held.model
        # On the CPU and every device; else each process begins with a state by chance, which checkpoints hold.
        torch.manual_seed(derive_key(settings.seed, "torch", self.held.rank))
        init_weights(self.model, settings.seed)
        self.reference: Reference | None = None
        self.optimizers = Optimizers(self.model.weights(), settings.optimizer, settings.own_optimizer)
        self.writer = StateWriter()
        self.stage = StageSettings(settings.spec.max_seq_len)
        self.trained_rope = settings.spec.rope  # the rotary positions of the last update
        self.enter(self.stage)

    def enter(self, stage: StageSettings) -> None:
        refuse_misfits(self.settings, stage)
        self.stage = stage
        self.rotation = self._rotation(stage.seq_len)
        self._hold_reference(stage)
        if self.settings.compile:
            torch.compiler.reset()  # code compiled for earlier stages would change what a resume compiles, and its bits
        if stage.reset_optimizer:
            how, own = self.settings.optimizer, self.settings.own_optimizer
            self.optimizers = Optimizers(self.model.weights(), how, own)

    def step(self, batch: Batch, now: StepSettings) -> StepStats:
        arrived = time.perf_counter()
        loss_tokens = int(self.held.sum(np.array([batch.loss_tokens()], np.float64)).item())
        waited = time.perf_counter() - arrived
        with deterministic_algorithms(self.settings.deterministic):
            nats, terms = self._gradients(batch, 1 / max(1, loss_tokens))
            figures = summed_figures(self.held, batch.sources, figures_by_source(batch, nats))
            loss = sum(part.nats for part in figures.values()) / max(1, loss_tokens)
            norm = self.optimizers.grad_norm()
            skipped = StepStats.why_skipped(loss, norm.item(), now.loss_limit)
            if skipped is None:
                self.optimizers.step(now, norm)
                self.trained_rope = self.stage.rope or self.settings.spec.rope
            self.optimizers.zero_grad()
        return StepStats(
            loss=loss,
            loss_tokens=loss_tokens,
            grad_norm=norm.item(),
            nats_by_source={source: part.nats for source, part in figures.items()},
            loss_tokens_by_source={source: part.tokens for source, part in figures.items()},
            extra=self._extra(loss, self._shared_terms(terms, loss_tokens)),
            skipped=skipped,
            waited=waited if self.settings.mesh.size > 1 else 0.0,
        )

    @torch.no_grad()
    def evaluate(self, batch: Batch) -> EvalStats:
        with deterministic_algorithms(self.settings.deterministic):
            losses = [self.model(rows, Objective()) for _, rows, _ in self._micro_batches(batch)]
            self.held.end_passes()
        nats = _by_token([part.nats for part in losses], batch.seq_len)
        figures = figures_by_source(batch, nats, self.settings.token_bytes)
        return EvalStats(summed_figures(self.held, batch.sources, figures))

    @torch.no_grad()
    def nats(self, batch: Batch) -> NDArray[np.float32]:
        with deterministic_algorithms(self.settings.deterministic):
            nats = [self.model(rows, Objective()).nats for _, rows, _ in self._micro_batches(batch)]
            self.held.end_passes()
        return _by_token(nats, batch.seq_len)

    def generation(self, prompts: Sequence[NDArray[np.integer]], room: int) -> Generation:
        refuse_too_long(prompts, room, max(self.settings.spec.max_seq_len, self.stage.seq_len))
        if self.settings.make_model is not None:
            return WholeRowGeneration(prompts, self._next_logits)
        longest = max((len(prompt) for prompt in prompts), default=1) + room
        table = self.rotation if longest <= self.stage.seq_len else self._rotation(longest)
        return TorchGeneration(self.held, table, prompts, room)

    def save(self, folder: Path, *, background: bool = True) -> SaveHandle:
        state = under(WEIGHTS, self._weights()) | under(OPTIMIZER, dict(self.optimizers.state()))
        state |= under(RANDOM, random_state(self.held.rank))
        spec = replace(self.settings.spec, rope=self.trained_rope)
        return self.writer.save(folder, spec, state, background=background)

    def load(self, folder: Path) -> None:
        """Continue from what `save` wrote, on any layout; on the same one exact to the bit."""
        saved = saved_tensors(folder, self.settings.spec)
        refuse_other_weights(folder, self._weights(), saved)
        kept = {name.removeprefix(OPTIMIZER): facts for name, facts in saved.items() if name.startswith(OPTIMIZER)}
        optimizer = self.optimizers.room_for(kept)
        read_into(folder, under(WEIGHTS, self._weights()) | under(OPTIMIZER, optimizer))
        self.optimizers.load(optimizer)
        load_random_state(folder, saved, self.held.rank)
        self.trained_rope = read_spec(folder).rope

    def start_from(self, folder: Path) -> None:
        fill(self.model, folder)
        self.trained_rope = read_spec(folder).rope

    def peak_flops(self) -> float | None:
        return peak_of(torch.cuda.get_device_name(self.device)) if self.device.type == "cuda" else None

    def export(self, folder: Path) -> None:
        spec = self.settings.spec
        seq_len = max(spec.max_seq_len, self.stage.seq_len)
        if not isinstance(self.model, Decoder):
            raise UsageError(f"{folder}: Hugging Face's form is for decoders, and {spec.own} made this model.")
        huggingface.write_folder(self.model, self.trained_rope, seq_len, folder)

    def _weights(self) -> dict[str, Tensor]:
        return {name: parameter.detach() for name, parameter in self.model.weights().items()}

    def _hold_reference(self, stage: StageSettings) -> None:
        """The one that the stage asks for; one that is held already is not loaded again, any other is let go first."""
        if stage.kl is None:
            self.reference = None
        elif self.reference is None or not self.reference.serves(stage.kl, self.settings):
            self.reference = None
            self.reference = Reference(stage.kl, self.settings, self.device)

    def _gradients(self, batch: Batch, scale: float) -> tuple[NDArray[np.float32], dict[str, float]]:
        """Leaves every parameter's gradient in place; gives nats by token and sums of what else the objective has."""
        kl, document_mask = self.stage.kl, self.stage.document_mask
        penalty = None if kl is None else Penalty(kl.beta, kl.direction)
        objective = Objective(scale, self.stage.z_loss or 0.0, penalty, self.settings.token_losses)
        nats, sums = [], []
        for part, rows, is_last in self._micro_batches(batch):
            reference = None if self.reference is None else self.reference.states(part, rows, document_mask)
            self.held.begin_pass(is_last=is_last)
            losses = self.model(rows, objective, reference)
            losses.objective.backward()
            nats.append(losses.nats)
            sums.append(_sums(losses))
        totals = {name: float(torch.stack([each[name] for each in sums]).sum().item()) for name in sums[0]}
        return _by_token(nats, batch.seq_len), totals

    def _shared_terms(self, terms: Mapping[str, float], loss_tokens: int) -> dict[str, float]:
        """Terms of the objective over all ranks, for each loss token."""
        if not terms:
            return {}
        summed = self.held.sum(np.array(list(terms.values()), np.float64)) / max(1, loss_tokens)
        return dict(zip(terms, summed.tolist(), strict=True))

    def _micro_batches(self, batch: Batch) -> Iterator[tuple[Batch, DeviceBatch, bool]]:
        """Parts of a batch, the same on the device, and whether it is the last."""
        table = self.rotation if batch.seq_len <= self.stage.seq_len else self._rotation(batch.seq_len)
        size = self.settings.micro_batch_size or batch.num_rows
        for start in range(0, batch.num_rows, size):
            part = batch.rows(start, start + size)
            yield part, self._on_device(part, table), start + size >= batch.num_rows

    def _on_device(self, batch: Batch, table: Rotation) -> DeviceBatch:
        own_model, own_loss = self.settings.make_model is not None, self.settings.token_losses is not None
        wants = {"attends": not own_model, "places": own_model or own_loss}
        return DeviceBatch.of(batch, table, self.stage.document_mask, **wants)

    @torch.no_grad()
    def _next_logits(self, rows: Sequence[NDArray[np.integer]]) -> NDArray[np.float32]:
        """Of what follows whole rows, by a model of the user's own; on many ranks each passes at least one row."""
        slots = max((len(row) for row in rows), default=1)
        batch = self._on_device(padded_rows(rows, max(1, len(rows)), slots), self.rotation)
        ends = torch.tensor([slots * number + len(row) - 1 for number, row in enumerate(rows)], dtype=torch.int64)
        with torch.compiler.set_stance("force_eager"):  # rows of each length would be compiled again
            logits = self.model.next_logits(batch, ends.to(self.device))
        self.held.end_passes()
        found: NDArray[np.float32] = logits.cpu().numpy()
        return found

    def _extra(self, loss: float, terms: Mapping[str, float]) -> dict[str, float]:
        """A loss of the user's own has its own figures."""
        return dict(terms) if self.settings.token_losses is not None else self.stage.extra(loss, terms)

    def _rotation(self, seq_len: int) -> Rotation:
        spec = self.settings.spec
        return Rotation.table(self.stage.rope or spec.rope, spec.head_dim, seq_len, self.device)


def find_device() -> str:
    """The best device of this machine."""
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def open_device(name: str | None) -> torch.device:
    """The device of this name, or the best one; ConfigError where torch does not find it."""
    name = name or find_device()
    kind, _, number = name.partition(":")
    found = {"cpu": 1, "cuda": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available())}
    if found.get(kind, 0) <= int(number or 0):
        what = f'is "{name}", which torch does not find here. Write "{find_device()}", or leave it out.'
        raise ConfigError([Problem("engine.device", what)])
    return torch.device(name)


def _by_token(nats: list[Tensor], seq_len: int) -> NDArray[np.float32]:
    """Losses of all micro-batches -> one array (rows, seq_len); the one time a step waits for the device."""
    by_token: NDArray[np.float32] = torch.cat(nats).cpu().numpy()
    return by_token.reshape(-1, seq_len)


def _sums(losses: Losses) -> dict[str, Tensor]:
    """Over a micro-batch's tokens, still on the device."""
    if losses.figures is not None:
        return {name: figure.sum() for name, figure in losses.figures.items()}
    parts = {"z": losses.z, "kl": losses.kl, "reference_nats": losses.reference_nats}
    return {name: part.sum() for name, part in parts.items() if part is not None}


@dataclass(slots=True)
class _Before:
    """How torch was before the first thread came in; the last one out puts it back."""

    inside: int = 0
    exact: bool = False
    filling: bool = True


_before, _lock = _Before(), threading.Lock()


@contextmanager
def deterministic_algorithms(wanted: bool) -> Iterator[None]:
    """Inside, operations whose bits may differ from run to run are replaced or raise; costs nothing on a CPU."""
    if not wanted:
        yield
        return
    with _lock:
        if not _before.inside:
            _before.exact = torch.are_deterministic_algorithms_enabled()
            _before.filling = deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
            torch.use_deterministic_algorithms(True)
            deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # a pass over all memory
        _before.inside += 1
    try:
        yield
    finally:
        with _lock:
            _before.inside -= 1
            if not _before.inside:
                torch.use_deterministic_algorithms(_before.exact)
                deterministic.fill_uninitialized_memory = _before.filling  # type: ignore[attr-defined]

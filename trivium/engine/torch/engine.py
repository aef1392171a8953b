"""Batches -> updates: the Engine protocol in torch, on one device or shared by many ranks.

A step passes its micro-batches forward and backward, adding up gradients of an objective that is divided by the loss
tokens of the whole batch, on all ranks, and then updates once. Micro-batches change the memory that activations take
and nothing else. A rank is given its own rows; figures are those of all ranks. The loss tokens of all ranks are known
with these, after the passes: until then many ranks divide by the slots of the batch.
"""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trivium.engine.average import AverageSettings
from trivium.engine.base import (
    EngineSettings,
    EvalStats,
    Generation,
    OptimizerSettings,
    Precision,
    SaveHandle,
    StageSettings,
    StepSettings,
    StepStats,
    refuse_misfits,
    refuse_too_long,
)
from trivium.engine.devices import peak_of
from trivium.engine.figures import counts_by_source, figures_by_position, figures_by_source
from trivium.engine.generation import WholeRowGeneration, padded_rows
from trivium.engine.torch.average import (
    copy_of,
    fill_with_mean,
    follow,
    read_average,
    read_copies,
    saved_copies,
    swapped_in,
    with_copy,
)
from trivium.engine.torch.checkpoint.grow import grown, grown_state
from trivium.engine.torch.checkpoint.state import (
    OPTIMIZER,
    WEIGHTS,
    StateWriter,
    load_random_state,
    random_state,
    read_into,
    refuse_other_weights,
    saved_tensors,
    under,
)
from trivium.engine.torch.checkpoint.weights import (
    PRECISIONS,
    empty_model,
    engine_precision,
    fill,
    init_weights,
    write_folder,
)
from trivium.engine.torch.compare import Penalty
from trivium.engine.torch.generation import TorchGeneration
from trivium.engine.torch.layers import Rotation
from trivium.engine.torch.loss import Objective
from trivium.engine.torch.measure.compiled import limit_notice, limits_hit
from trivium.engine.torch.measure.device import open_device
from trivium.engine.torch.measure.profile import profiled
from trivium.engine.torch.model import DeviceBatch, uncompiled
from trivium.engine.torch.numerics.deterministic import deterministic_algorithms, is_exact, pin_libraries
from trivium.engine.torch.numerics.float8 import EMULATED
from trivium.engine.torch.optim import Optimizers
from trivium.engine.torch.parallel import LocalModel, StepFigures, StepSums, figures_of, local_part, summed_figures
from trivium.engine.torch.reference import Reference
from trivium.model.folder import is_saved, read_spec
from trivium.model.foreign import with_rope, with_vocab
from trivium.model.parts import parts_of
from trivium.rows.batch import Batch
from trivium.seeds import derive_key


class TorchEngine:
    """One process on one device; without a launcher it needs no process group."""

    def __init__(self, settings: EngineSettings) -> None:
        self.settings = settings
        self.device = open_device(settings.device)
        self.notice = EMULATED if settings.float8 is not None and self.device.type == "cpu" else None
        self.exact = is_exact(settings.deterministic, self.device.type)
        if self.exact and self.device.type == "cuda":
            pin_libraries(os.environ)  # before they are first used
        self.held = empty_model(settings, self.device, engine_precision(settings, self.device))
        self.model = self.held.model
        self.kinds = self.model.spec.attentions
        self.wide = torch.float32 if self.device.type == "mps" else torch.float64  # of sums over tokens
        # On the CPU and every device; else each process begins with a state by chance, which checkpoints hold.
        torch.manual_seed(derive_key(settings.seed, "torch", self.held.rank))
        if settings.draw:
            init_weights(self.model, settings.seed)
        self.references: dict[str, Reference] = {}  # by the term that is measured to it
        self.optimizers = self._fresh_optimizers(settings.optimizer)
        self.copies: list[dict[str, Tensor]] = []  # of the weights, for an average; the oldest first
        self.writer = StateWriter(self.held.mesh)
        self.stage, self.precision = StageSettings(settings.spec.max_seq_len), engine_precision(settings, self.device)
        self.trained_rope = settings.spec.rope  # the rotary positions of the last update
        self.enter(self.stage)

    def enter(self, stage: StageSettings) -> None:
        refuse_misfits(self.settings, stage)
        self._enter_average(stage)
        self.stage = stage = stage.resolved(self.settings)
        precision = stage.precision or engine_precision(self.settings, self.device)
        self._remake(precision, stage.vocab or self.settings.spec.vocab, fresh=stage.reset_optimizer)
        self._freeze(stage)
        self.model.recompute = stage.recompute or "none"
        self.context = self.held.share_rows(stage.context or 1, self.settings.context_method)
        self.rotation = self._rotation(stage.seq_len)
        self.model.set_rope(stage.rope or self.settings.spec.rope)
        self._hold_references(stage)
        if self.settings.compile or self.device.type == "cuda":  # where flex attention is compiled in any case
            torch.compiler.reset()  # code compiled for earlier stages would change what a resume compiles, and its bits
        self.limits_hit: int | None = limits_hit()  # before the stage; None once it was told
        self._use(stage.optimizer or self.settings.optimizer, fresh=stage.reset_optimizer)

    def step(self, batch: Batch, now: StepSettings) -> StepStats:
        began = time.perf_counter()
        tokens, weights = batch.loss_tokens_by_row(), self.stage.loss_weight
        counts = counts_by_source(batch, tokens)
        own_weight = weights.total(dict(zip(batch.sources, counts[1].tolist(), strict=True)))
        divisor = self.held.divisor(own_weight, batch.targets.size)
        with deterministic_algorithms(self.exact):
            sums = self._gradients(batch, 1 / divisor)
            norm, figures = self._figures(sums, tokens, counts, () if now.flags is None else now.flags())
            together = time.perf_counter() - began
            loss_tokens = sum(figures.loss_tokens)
            weight = weights.total(dict(zip(batch.sources, figures.loss_tokens, strict=True))) or 1
            scale = divisor / weight  # 1 for a single process
            loss, grad_norm = sum(figures.nats) / max(1, loss_tokens), figures.norm * scale
            skipped = StepStats.why_skipped(loss, grad_norm, now.loss_limit, now.norm_limit)
            if skipped is None:
                self.optimizers.step(now, norm * scale, scale)
                self._follow()
                self.trained_rope = self.stage.rope or self.settings.spec.rope
            self.optimizers.zero_grad()
        there = [number for number, count in enumerate(figures.rows) if count]
        by_source = {batch.sources[each]: figures.nats[each] for each in there}
        return StepStats(
            loss=loss,
            loss_tokens=loss_tokens,
            grad_norm=grad_norm,
            nats_by_source=by_source,
            loss_tokens_by_source={batch.sources[each]: figures.loss_tokens[each] for each in there},
            extra=self._extra(by_source, {name: total / weight for name, total in figures.terms.items()}, weight),
            skipped=skipped,
            together=together if self.settings.mesh.size > 1 else 0.0,
            raised=None if now.flags is None else figures.raised,
            notice=self._notice(),
            loss_by_row=figures.loss_by_row,
        )

    def add_to_average(self) -> None:
        kept = self.stage.average
        if kept is not None and kept.last is not None:
            self.copies = with_copy(self.copies, self._weights(), kept.last)

    @property
    def has_average(self) -> bool:
        return bool(self.copies)

    def averaged(self) -> AbstractContextManager[None]:
        assert self.stage.average is not None, "asked where there is an average"
        return swapped_in(self._weights(), self.copies, self.stage.average)

    @torch.no_grad()
    def evaluate(self, batch: Batch) -> EvalStats:
        nats = self.nats(batch)
        figures = figures_by_source(batch, nats, self.settings.token_bytes)
        by_position = self.held.sum(figures_by_position(batch, nats))
        return EvalStats(summed_figures(self.held, batch.sources, figures), by_position)

    @torch.no_grad()
    def nats(self, batch: Batch) -> NDArray[np.float32]:
        with deterministic_algorithms(self.exact), uncompiled(self.model):
            nats = [self.model(rows, Objective()).nats for rows, _ in self._micro_batches(batch)]
            self.held.end_passes()
        by_slot = torch.cat(nats).view(batch.num_rows, -1)
        by_token: NDArray[np.float32] = self.context.whole_rows(by_slot, batch.seq_len).cpu().numpy()
        return by_token

    def generation(self, prompts: Sequence[NDArray[np.integer]], room: int) -> Generation:
        refuse_too_long(prompts, room, max(self.settings.spec.max_seq_len, self.stage.seq_len))
        if self.settings.make_model is not None:
            return WholeRowGeneration(prompts, self._next_logits)
        cached: Generation | None = self.model.cached_generation(self.held, prompts, self.device)
        if cached is not None:
            return cached
        longest = max((len(prompt) for prompt in prompts), default=1) + room
        table = self.rotation if longest <= self.stage.seq_len else self._rotation(longest)
        return TorchGeneration(self.held, table, prompts, room)

    def save(self, folder: Path, *, background: bool = True) -> SaveHandle:
        state = under(WEIGHTS, self._weights()) | under(OPTIMIZER, dict(self.optimizers.state()))
        state |= saved_copies(self.copies)
        spec = with_rope(self.model.spec, self.trained_rope)
        return self.writer.save(folder, spec, state, random_state(), background=background)

    def load(self, folder: Path, optimizer: OptimizerSettings | None = None) -> None:
        """Continue from what `save` wrote, on any layout; on the same one exact to the bit."""
        self._use(optimizer or self.optimizers.settings)
        if is_saved(folder):
            self._resize(read_spec(folder).vocab)
        saved = saved_tensors(folder, self.settings.spec)
        refuse_other_weights(folder, self._shapes(), saved)
        kept = {name.removeprefix(OPTIMIZER): facts for name, facts in saved.items() if name.startswith(OPTIMIZER)}
        state = self.optimizers.room_for(kept)
        read_into(folder, saved, under(WEIGHTS, self._weights()) | under(OPTIMIZER, state))
        self.optimizers.load(state)
        self.copies = read_copies(folder, saved, self._weights())
        load_random_state(folder, saved, self.held.rank)
        self.trained_rope = read_spec(folder, foreign=self.settings.spec.foreign is not None).rope

    def draw(self) -> None:
        init_weights(self.model, self.settings.seed)
        self._use(self.optimizers.settings, fresh=True)
        self.copies = []

    def start_from(self, folder: Path, average: AverageSettings | None = None) -> None:
        if average is None:
            fill(self.model, folder)
        else:
            saved = saved_tensors(folder, self.settings.spec)
            refuse_other_weights(folder, self._shapes(), saved)
            read_average(folder, saved, self._weights(), average)
        self.copies = []
        self._use(self.optimizers.settings, fresh=True)
        self.trained_rope = read_spec(folder, foreign=self.settings.spec.foreign is not None).rope

    def computes_in(self) -> dict[str, str]:
        is_gpu = self.device.type == "cuda"
        device = torch.cuda.get_device_name(self.device) if is_gpu else self.device.type
        return {"device": device, "precision": engine_precision(self.settings, self.device)}

    def peak_flops(self) -> float | None:
        return peak_of(torch.cuda.get_device_name(self.device)) if self.device.type == "cuda" else None

    def profiled(self, folder: Path) -> AbstractContextManager[None]:
        return profiled(folder, self.device)

    def export(self, folder: Path) -> None:
        write_folder(self.model, self.trained_rope, max(self.settings.spec.max_seq_len, self.stage.seq_len), folder)

    def _use(self, settings: OptimizerSettings, *, fresh: bool = False) -> None:
        """Update by these settings from now on; state is kept unless it is another optimizer's."""
        if fresh or settings.name != self.optimizers.settings.name:
            self.optimizers = self._fresh_optimizers(settings)
        else:
            self.optimizers = self.optimizers.changed_to(settings)

    def _fresh_optimizers(self, settings: OptimizerSettings) -> Optimizers:
        return Optimizers(self.model.weights(), settings, self.settings.own_optimizer, self.model.grouped_as)

    @torch.no_grad()
    def _remake(self, precision: Precision, vocab: int, *, fresh: bool) -> None:
        """Let another type flow between the weights, and let the vocabulary grow; known weights keep their bits.

        How ranks gather weights is fixed when a model is shared out: they take theirs over into another one. A `fresh`
        optimizer's state is not taken over.
        """
        self.precision, old = precision, self.settings.spec.vocab
        assert vocab >= old, "a plan refuses a vocabulary that shrinks"
        if vocab == old and isinstance(self.held, LocalModel):
            self.model.precision = PRECISIONS[precision]
        if vocab == old and self.model.precision == PRECISIONS[precision]:
            return
        weights, state = self._weights(), {} if fresh else dict(self.optimizers.state())
        self.settings = replace(self.settings, spec=with_vocab(self.settings.spec, vocab))
        with torch.random.fork_rng(devices=[]):  # a model of the user's own may draw numbers when it is made
            self.held = empty_model(self.settings, self.device, precision)
        self.model = self.held.model
        if vocab > old:
            growth = (self._weights(), self.model.vocab_rows(), old, vocab)
            state, weights = grown_state(state, weights, *growth), grown(weights, *growth)
            self.copies = [grown(copy, *growth) for copy in self.copies]
        for name, tensor in self._weights().items():
            local_part(tensor)[0].copy_(local_part(weights[name])[0])
        self.optimizers = self._fresh_optimizers(self.optimizers.settings)
        self.optimizers.load(state)

    def _resize(self, vocab: int) -> None:
        """Make room for weights with another vocabulary, of which none has a value yet."""
        if vocab == self.settings.spec.vocab or self.settings.make_model is not None:
            return
        self.settings = replace(self.settings, spec=with_vocab(self.settings.spec, vocab))
        self.held = empty_model(self.settings, self.device, self.precision)
        self.model = self.held.model
        self.model.recompute = self.stage.recompute or "none"
        self.context = self.held.share_rows(self.stage.context or 1, self.settings.context_method)
        self.optimizers = self._fresh_optimizers(self.optimizers.settings)
        self.references = {}  # of the other size; a stage that asks for them is yet to be entered
        self._freeze(self.stage)

    def _freeze(self, stage: StageSettings) -> None:
        """Let no gradient be made of what the stage freezes; what the optimizer keeps of it stays as it is."""
        frozen = parts_of(stage.freeze, self.settings.spec)
        for name, parameter in self.model.weights().items():
            parameter.requires_grad_(not frozen or self.model.part_of(name) not in frozen)

    def _enter_average(self, stage: StageSettings) -> None:
        """The weights become the average where a stage starts from it; then one begins, goes on or ends."""
        if stage.start_from is not None:
            fill_with_mean(self._weights(), self.copies, stage.start_from)
        if stage.average is None or stage.begin_average:
            self.copies = []
        if stage.average is not None and stage.average.ema is not None and not self.copies:
            self.copies = [copy_of(self._weights())]

    def _follow(self) -> None:
        """An average that follows the weights does so at every update."""
        kept = self.stage.average
        if kept is not None and kept.ema is not None:
            follow(self.copies[0], self.model.weights(), kept.ema)

    def _weights(self) -> dict[str, Tensor]:
        return self.model.tensors()

    def _shapes(self) -> dict[str, torch.Size]:
        return {name: tensor.shape for name, tensor in self._weights().items()}

    def _hold_references(self, stage: StageSettings) -> None:
        """Those that the stage asks for; one that is held already is not loaded again, any other is let go first."""
        settings = replace(self.settings, precision=self.precision)
        asked, held = stage.references, self.references
        self.references = {
            name: each for name, each in held.items() if name in asked and each.serves(asked[name], settings)
        }
        del held
        for name, kl in asked.items():
            if name not in self.references:
                self.references[name] = Reference(kl, settings, self.device)

    def _gradients(self, batch: Batch, scale: float) -> StepSums:
        """Leaves every parameter's gradient in place; gives sums of nats, and of what else the objective has."""
        stage, held = self.stage, [self.references[name] for name in self.stage.references]
        terms = [Penalty(each.beta, each.direction, each.temperature, each.top_k) for each in stage.references.values()]
        weight, own = stage.cross_entropy, stage.token_losses
        objective = Objective(scale, stage.z_loss or 0.0, tuple(terms), weight, own)
        by_row, by_source, sums = [], [], []
        for rows, is_last in self._micro_batches(batch):
            states = [each.states(rows, batch.seq_len) for each in held]
            self.held.begin_pass(is_last=is_last)
            losses = self.model(rows, objective, states)
            for each in held:
                each.let_go()
            losses.objective.backward()
            assert rows.by_source is not None, "made from a batch"
            by_row.append(losses.nats.view(rows.tokens.shape).sum(1, dtype=self.wide))
            by_source.append(rows.by_source.to(self.wide) @ by_row[-1])
            sums.append(losses.sums(rows.targets, list(stage.references)))
        totals = {name: torch.stack([each[name] for each in sums]).sum() for name in sums[0]}
        return StepSums(torch.cat(by_row), torch.stack(by_source).sum(0), totals)

    def _notice(self) -> str | None:
        """Once that float8 is emulated; once a stage that the compiler has given up on further shapes."""
        notice, self.notice = self.notice, None
        if notice is not None:
            return notice
        if self.limits_hit is None or limits_hit() == self.limits_hit:
            return None
        self.limits_hit = None
        return limit_notice()

    def _figures(
        self, sums: StepSums, tokens: NDArray[np.int64], counts: NDArray[np.float64], flags: Sequence[bool]
    ) -> tuple[Tensor, StepFigures]:
        """Of all ranks, by one call between them; the one time that a step waits for the device."""
        counts = counts / self.context.size  # ranks that share rows have all of their counts each
        shape, ranks = self.settings.mesh.with_context(self.context.size), self.settings.mesh.size
        place = shape.reader(self.held.rank, ranks), shape.readers(ranks)
        return figures_of(self.held, self.optimizers.gradients(), sums, tokens, counts, flags, place)

    def _micro_batches(self, batch: Batch) -> Iterator[tuple[DeviceBatch, bool]]:
        """Parts of a batch on the device, each copied before the one before it is used, and whether it is the last."""
        table = self.rotation if batch.seq_len <= self.stage.seq_len else self._rotation(batch.seq_len)
        size = self.stage.micro_batch_size or batch.num_rows
        ahead: DeviceBatch | None = None
        for start in range(0, batch.num_rows, size):
            rows = self._on_device(batch.rows(start, start + size), table)
            if ahead is not None:
                yield ahead, False
            ahead = rows
        assert ahead is not None, "a batch has rows"
        yield ahead, True

    def _on_device(self, batch: Batch, table: Rotation) -> DeviceBatch:
        own_model, own_loss = self.settings.make_model is not None, self.stage.token_losses is not None
        return DeviceBatch.of(
            batch,
            table,
            self.stage.document_mask,
            context=self.context,
            attends=not own_model,
            kinds=self.kinds,
            places=own_model or own_loss,
            row_weights=self.stage.loss_weight.of_rows(batch),
        )

    @torch.no_grad()
    def _next_logits(self, rows: Sequence[NDArray[np.integer]]) -> NDArray[np.float32]:
        """Of what follows whole rows, by a model of the user's own; on many ranks each passes at least one row."""
        slots = max((len(row) for row in rows), default=1)
        batch = self._on_device(padded_rows(rows, max(1, len(rows)), slots), self.rotation)
        ends = torch.tensor([slots * number + len(row) - 1 for number, row in enumerate(rows)], dtype=torch.int64)
        with uncompiled(self.model):
            logits = self.model.next_logits(batch, ends.to(self.device))
        self.held.end_passes()
        found: NDArray[np.float32] = logits.cpu().numpy()
        return found

    def _extra(self, nats: Mapping[str, float], terms: Mapping[str, float], weight: float) -> dict[str, float]:
        """Beside the loss, from nats by source; a loss of the user's own has its own figures."""
        if self.stage.token_losses is not None:
            return dict(terms)
        return self.stage.extra(self.stage.loss_weight.total(nats) / weight, terms)

    def _rotation(self, seq_len: int) -> Rotation:
        spec = self.settings.spec
        return Rotation.table(self.stage.rope or spec.rope, spec.rotated, seq_len, self.device)

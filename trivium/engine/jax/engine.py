"""Batches -> updates: the Engine protocol in JAX, on one device or on the mesh of all of a launch's.

Everything that computes is compiled (`step`): once for a stage, since whatever else changes is an argument. This class
holds the state between steps and converts batches, settings and figures. A process is given its own
rows; figures are those of all processes.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax import Array
from numpy.typing import NDArray

from trivium.engine.average import AverageSettings
from trivium.engine.base import (
    EngineSettings,
    EvalStats,
    Generation,
    KlSettings,
    OptimizerSettings,
    Precision,
    SaveHandle,
    SourceFigures,
    StageSettings,
    StepSettings,
    StepStats,
    refuse_misfits,
    refuse_too_long,
)
from trivium.engine.devices import peak_of
from trivium.engine.generation import WholeRowGeneration, padded_rows
from trivium.engine.jax import huggingface
from trivium.engine.jax.average import copy_of, mean_of, part_name, read_average, read_copies
from trivium.engine.jax.context_parallel.context import head_tail, shared_slots
from trivium.engine.jax.generation import JaxGeneration, power_of_two, whole_row_logits
from trivium.engine.jax.layers import Rotations
from trivium.engine.jax.loss import Penalty
from trivium.engine.jax.model import Design, Params, check_own_model
from trivium.engine.jax.optim import StepRates, optimizer_of
from trivium.engine.jax.ranks import largest
from trivium.engine.jax.reference import Reference
from trivium.engine.jax.sharding import (
    CONTEXT,
    all_rows,
    device_mesh,
    key_words,
    on_mesh,
    own_rows,
    placed,
    put_rows,
    rows_multiple,
    sharded_init,
    sharded_zeros,
    whole_everywhere,
)
from trivium.engine.jax.state import (
    OPTIMIZER,
    WEIGHTS,
    StateWriter,
    named_leaves,
    read_state,
    refuse_other_optimizer,
    room_for,
    saved_shapes,
)
from trivium.engine.jax.step import (
    BySource,
    DeviceBatch,
    FrozenReference,
    Program,
    ReferenceDesign,
    StageTerms,
    StepDesign,
    TrainState,
    compilations,
    program,
)
from trivium.engine.jax.weights import grown, grown_state, read_weights
from trivium.engine.mesh import MeshShape, refuse_uneven_matrices
from trivium.errors import UsageError
from trivium.model.folder import is_saved, read_spec, refuse_other_parameters
from trivium.model.parts import part_of, parts_of
from trivium.model.spec import ModelSpec
from trivium.rows.batch import Batch
from trivium.seeds import derive_key


class JaxEngine:
    """One process, with its part of a mesh of devices."""

    def __init__(self, settings: EngineSettings) -> None:
        refuse_uneven_matrices(settings.mesh, settings.spec)
        self.settings = settings
        self.mesh = device_mesh(settings.mesh, settings.device)
        self.design = Design(
            settings.spec, self._precision(settings.precision), settings.recompute, settings.make_model
        )
        if settings.make_model is not None:
            check_own_model(self.design)
        params = self._drawn() if settings.draw else sharded_zeros(self.design, self.mesh)
        self.optimizer_settings = settings.optimizer
        self.optimizer = optimizer_of(settings.optimizer, settings.own_optimizer, params)
        self.state = self._fresh(params)
        self.last_copies: list[Params] = []  # of the parameters, for an average of these; the oldest first
        known = settings.token_bytes
        self.token_bytes = None if known is None else whole_everywhere(known.astype(np.int32), self.mesh)
        self.references: dict[str, Reference] = {}  # by the term that is measured to it
        self.writer = StateWriter()
        compilations()
        self.stage = StageSettings(settings.spec.max_seq_len)
        self.trained_rope = settings.spec.rope  # the rotary positions of the last update
        self.enter(self.stage)

    def enter(self, stage: StageSettings) -> None:
        refuse_misfits(self.settings, stage)
        self._enter_average(stage)
        self.stage = stage = stage.resolved(self.settings)
        rope = stage.rope or self.settings.spec.rope
        precision = self._precision(stage.precision)
        self.design = replace(
            self.design, precision=precision, recompute=stage.recompute or "none", dropped=rope.dropped
        )
        self._divide_devices(self.settings.mesh.with_context(stage.context or 1))
        self._grow(stage.vocab or self.settings.spec.vocab, fresh=stage.reset_optimizer)
        self._hold_references(stage)
        self.rotations = self._rotations(stage.seq_len)
        self._use(stage.optimizer or self.settings.optimizer, fresh=stage.reset_optimizer)
        self.program = self._program(stage)
        self.terms = self._terms(stage)

    def step(self, batch: Batch, now: StepSettings) -> StepStats:
        rows = DeviceBatch.of(batch, self.stage.micro_batch_size, self.mesh)
        # Random numbers, should anything draw them, come from seed and step, so that none are kept.
        key = key_words(derive_key(self.settings.seed, "step", now.step))
        known = compilations()
        before = known.count
        with jax.set_mesh(self.mesh):
            self.state, *found = self.program.train_step(
                self.state,
                rows,
                key,
                len(rows.tokens),
                StepRates.of(now, self.optimizer_settings.grad_clip),
                self.terms._replace(loss_weight=self.stage.loss_weight.of_sources(batch.sources)),
                len(batch.sources),
            )
        compiled = known.count - before
        limited_loss, meta = jax.device_get(tuple(found))
        figures = _figures(batch.sources, meta.by_source)
        loss_tokens, norm = int(meta.loss_tokens), float(meta.grad_norm)
        loss = sum(part.nats for part in figures.values()) / max(1, loss_tokens)
        # The device decided by its own float32 figures: the reason is given by the same.
        limits = (float(np.float32(limit)) for limit in (now.loss_limit, now.norm_limit))
        skipped = StepStats.why_skipped(float(limited_loss), norm, *limits)
        nats, tokens = ({name: getattr(part, key) for name, part in figures.items()} for key in ("nats", "tokens"))
        weight = self.stage.loss_weight.total(tokens) or 1
        terms = {name: float(total) / weight for name, total in meta.sums.items()}
        if self.stage.token_losses is None:
            terms = self.stage.extra(self.stage.loss_weight.total(nats) / weight, terms)
        assert (skipped is None) == bool(meta.made), "engine and host agree on what is skipped"
        if skipped is None:
            self.trained_rope = self.stage.rope or self.settings.spec.rope
        return StepStats(
            loss=loss,
            loss_tokens=loss_tokens,
            grad_norm=norm,
            nats_by_source=nats,
            loss_tokens_by_source=tokens,
            extra=terms,
            skipped=skipped,
            compilations=compiled,
            loss_by_row=all_rows(meta.loss_by_row, self.mesh, batch.num_rows),
        )

    def add_to_average(self) -> None:
        kept = self.stage.average
        if kept is not None and kept.last is not None:
            self.last_copies = [*self.last_copies, copy_of(self.state.params)][-kept.last :]

    @property
    def has_average(self) -> bool:
        return bool(self._copies)

    @contextmanager
    def averaged(self) -> Iterator[None]:
        assert self.stage.average is not None, "asked where there is an average"
        own = self.state
        self.state = own._replace(params=own.average or mean_of(self._copies, self.stage.average))
        try:
            yield
        finally:
            self.state = own

    def evaluate(self, batch: Batch) -> EvalStats:
        _, _, meta = self._val(batch)
        by_source, by_position = jax.device_get((meta.by_source, meta.by_position))
        return EvalStats(_figures(batch.sources, by_source), by_position.astype(np.float64))

    def nats(self, batch: Batch) -> NDArray[np.float32]:
        _, _, meta = self._val(batch)
        context = self.mesh.shape[CONTEXT]
        slots = shared_slots(batch.seq_len, context)
        in_order = np.argsort(head_tail(slots, context))[: batch.seq_len]
        return own_rows(meta.nats).reshape(-1, slots)[: batch.num_rows, in_order]

    def generation(self, prompts: Sequence[NDArray[np.integer]], room: int) -> Generation:
        """Rows that begin with these prompts, shared out to the devices of this process, each row to one of them."""
        refuse_too_long(prompts, room, self._longest)
        if self.settings.make_model is not None:
            return WholeRowGeneration(prompts, self._next_logits)
        mesh = device_mesh(self.settings.mesh.with_context(1), self.settings.device)
        (longest,) = largest(mesh, max((len(prompt) for prompt in prompts), default=1))
        rope, spec = self.stage.rope or self.settings.spec.rope, self.settings.spec
        tables = Rotations.tables(rope, spec, power_of_two(longest + room), mesh)
        design = replace(self.design, recompute="none")  # keys and values are kept, not made again
        return JaxGeneration(design, on_mesh(self.state.params, mesh), tables, mesh, prompts, longest, room)

    def save(self, folder: Path, *, background: bool = True) -> SaveHandle:
        """Write weights, average and optimizer; returns when training may continue.

        Random numbers come from seed and step.
        """
        state = {WEIGHTS: self.state.params, OPTIMIZER: named_leaves(self.state.opt_state)}
        state |= {part_name(number): copy for number, copy in enumerate(self._copies)}
        spec = replace(self.settings.spec, rope=self.trained_rope)
        return self.writer.save(folder, spec, state, background=background)

    def load(self, folder: Path, optimizer: OptimizerSettings | None = None) -> None:
        """Continue from what `save` wrote, on any mesh; on the same one exact to the bit."""
        self._use(optimizer or self.optimizer_settings)
        there = read_spec(folder) if is_saved(folder) else self.settings.spec
        if there.own is None and there.vocab != self.settings.spec.vocab:
            self._know(there.vocab)
            self.state, self.references = self._fresh(sharded_zeros(self.design, self.mesh)), {}
            self.stage = replace(self.stage, kl=None, distill=None)  # a stage that has them is yet to be entered
        self.program = self._program(self.stage)
        saved = saved_shapes(folder, self.settings.spec)
        refuse_other_parameters(folder, saved[WEIGHTS], self.design.shapes())
        kept: dict[str, Any] = room_for(named_leaves(self.state.opt_state))
        refuse_other_optimizer(saved.get(OPTIMIZER, {}), kept)
        read = read_state(folder, {WEIGHTS: self._room(), OPTIMIZER: kept})
        leaves = [read[OPTIMIZER][name] for name in kept]
        opt_state = jax.tree.unflatten(jax.tree.structure(self.state.opt_state), leaves)
        self.state = TrainState(read[WEIGHTS], opt_state, {})
        self.last_copies = read_copies(folder, self._room(), saved)  # a stage knows which average they are
        self.trained_rope = read_spec(folder).rope

    def draw(self) -> None:
        self.state, self.last_copies = self._fresh(self._drawn()), []

    def start_from(self, folder: Path, average: AverageSettings | None = None) -> None:
        room, spec = self._room(), self.settings.spec
        kept = read_weights(folder, room, spec) if average is None else read_average(folder, room, spec, average)
        self.state, self.last_copies = self._fresh(kept), []
        self.trained_rope = read_spec(folder).rope

    def computes_in(self) -> dict[str, str]:
        return {"device": self.mesh.devices.flat[0].device_kind, "precision": self.design.precision}

    def peak_flops(self) -> float | None:
        return peak_of(self.mesh.devices.flat[0].device_kind)

    def profiled(self, folder: Path) -> AbstractContextManager[None]:
        return jax.profiler.trace(folder)

    def export(self, folder: Path) -> None:
        spec = self.settings.spec
        if spec.own is not None:
            raise UsageError(f"{folder}: Hugging Face's form is for decoders, and {spec.own} made this model.")
        huggingface.write_folder(self.state.params, spec, self.trained_rope, self._longest, folder)

    @property
    def _longest(self) -> int:
        """Slots of the longest row that the model reads."""
        return max(self.settings.spec.max_seq_len, self.stage.seq_len)

    def _next_logits(self, rows: Sequence[NDArray[np.integer]]) -> NDArray[np.float32]:
        """Of what follows whole rows, by a model of the user's own; shapes come in powers of two."""
        most, longest = largest(self.mesh, max(1, len(rows)), max((len(row) for row in rows), default=1))
        multiple = rows_multiple(self.mesh)
        size = math.ceil(power_of_two(most) / multiple) * multiple
        batch = padded_rows(rows, size, min(power_of_two(longest), self._longest))
        ends = np.array([len(row) - 1 for row in rows] + [0] * (size - len(rows)), np.int32)
        given = (put_rows(each, self.mesh, axis=0) for each in (batch.tokens, batch.positions, batch.segments, ends))
        with jax.set_mesh(self.mesh):
            logits = whole_row_logits(self.design, self.state.params, *given)
        return own_rows(logits, axis=0)[: len(rows)]

    def _drawn(self) -> dict[str, Array]:
        params, _ = sharded_init(self.design, self.settings.seed, mesh=self.mesh)
        return params

    def _use(self, settings: OptimizerSettings, *, fresh: bool = False) -> None:
        """Update by these settings from now on; state is kept unless it is another optimizer's."""
        is_other = settings.name != self.optimizer_settings.name
        if settings != self.optimizer_settings:
            self.optimizer_settings = settings
            if self.settings.own_optimizer is None:
                self.optimizer = optimizer_of(settings, None, self.state.params)
        if fresh or is_other:
            self.state = self._fresh(self.state.params)._replace(average=self.state.average)

    def _fresh(self, params: dict[str, Array]) -> TrainState:
        """Parameters with an optimizer's first state."""
        return TrainState(params, placed(self.optimizer.init(params), self.mesh), {})

    @property
    def _copies(self) -> list[Params]:
        """All that an average is made of, the oldest first."""
        return [self.state.average] if self.state.average else self.last_copies

    def _enter_average(self, stage: StageSettings) -> None:
        """The weights become the average where a stage starts from it; then one begins, goes on or ends."""
        kept, copies, params = stage.average, self._copies, self.state.params
        if stage.start_from is not None:
            params = mean_of(copies, stage.start_from)
        if kept is None or stage.begin_average:
            copies = []
        follows = kept is not None and kept.ema is not None
        average = (copies[0] if copies else copy_of(params)) if follows else {}
        self.state = self.state._replace(params=params, average=average)
        self.last_copies = [] if follows else copies

    def _room(self) -> dict[str, Any]:
        return room_for(dict(self.state.params))

    @property
    def _platform(self) -> str:
        """cpu, gpu or tpu."""
        return self.mesh.devices.flat[0].platform

    def _precision(self, asked: Precision | None) -> Precision:
        return asked or ("float32" if self._platform == "cpu" else "bfloat16")

    def _divide_devices(self, shape: MeshShape) -> None:
        """Between rows and their slots, as a stage asks for; arrays stay on their devices."""
        mesh = device_mesh(shape, self.settings.device)
        if mesh == self.mesh:
            return
        self.mesh = mesh
        self.state, self.token_bytes = on_mesh((self.state, self.token_bytes), mesh)
        for reference in self.references.values():
            reference.params = on_mesh(reference.params, mesh)

    def _grow(self, vocab: int, *, fresh: bool) -> None:
        """Give the vocabulary more rows; a `fresh` optimizer's state is not taken over."""
        spec = self.settings.spec
        assert vocab >= spec.vocab, "a plan refuses a vocabulary that shrinks"
        if vocab == spec.vocab:
            return
        was = self.design.shapes()
        self._know(vocab)
        shapes, (params, opt_state, average) = self.design.shapes(), self.state
        params, average = (grown(each, shapes, spec.vocab, vocab) for each in (params, average))
        self.last_copies = [grown(copy, shapes, spec.vocab, vocab) for copy in self.last_copies]
        if fresh:
            self.state = self._fresh(params)._replace(average=average)
            return
        self.state = TrainState(params, grown_state(opt_state, was, shapes, spec.vocab, vocab), average)

    def _know(self, vocab: int) -> None:
        spec = replace(self.settings.spec, vocab=vocab)
        self.settings, self.design = replace(self.settings, spec=spec), replace(self.design, spec=spec)

    def _hold_references(self, stage: StageSettings) -> None:
        """Those that the stage asks for; one that is held already is not loaded again, any other is let go first."""
        asked, held = stage.references, self.references
        self.references = {
            name: each for name, each in held.items() if name in asked and each.serves(asked[name], self.design)
        }
        del held
        for name, kl in asked.items():
            if name not in self.references:
                self.references[name] = Reference(kl, self.design, self.mesh)

    def _program(self, stage: StageSettings) -> Program:
        how = StepDesign(
            design=self.design,
            optimizer=self.optimizer,
            document_mask=stage.document_mask,
            references=tuple(
                ReferenceDesign(name, self.references[name].design, _penalty(kl, self.references[name].design.spec))
                for name, kl in stage.references.items()
            ),
            frozen=self._frozen(stage),
            token_losses=stage.token_losses,
            context_method=self.settings.context_method,
            row_by_row=self.mesh.size == 1 and self._platform == "cpu",
            exact=bool(self.settings.deterministic) and self._platform == "gpu",
        )
        return program(how)

    def _frozen(self, stage: StageSettings) -> frozenset[str]:
        """The parameters that no update of the stage changes."""
        parts = parts_of(stage.freeze, self.settings.spec)
        return frozenset(name for name in self.state.params if parts and part_of(name) in parts)

    def _terms(self, stage: StageSettings) -> StageTerms:
        references = []
        for name, kl in stage.references.items():
            held = self.references[name]
            tables = Rotations.tables(held.rope, held.design.spec, stage.seq_len, self.mesh)
            references.append(FrozenReference(held.params, tables, np.float32(kl.beta)))
        return StageTerms(
            rotations=self.rotations,
            z_loss=np.float32(stage.z_loss or 0.0),
            cross_entropy=np.float32(stage.cross_entropy),
            average_rate=np.float32(0.0 if stage.average is None else 1 - (stage.average.ema or 1.0)),
            references=tuple(references),
        )

    def _val(self, batch: Batch) -> Any:
        """What the compiled evaluation makes of a batch, whose rows may be longer than the stage's."""
        rows = DeviceBatch.of(batch, self.stage.micro_batch_size, self.mesh)
        tables = self.rotations if batch.seq_len <= self.stage.seq_len else self._rotations(batch.seq_len)
        terms, sources = StageTerms(tables), len(batch.sources)
        with jax.set_mesh(self.mesh):
            return self.program.val_step(self.state.params, rows, terms, sources, self.token_bytes)

    def _rotations(self, seq_len: int) -> Rotations:
        spec = self.settings.spec
        return Rotations.tables(self.stage.rope or spec.rope, spec, seq_len, self.mesh)


def _penalty(kl: KlSettings, reference: ModelSpec) -> Penalty:
    """What leaving a reference of this shape costs, apart from its weight."""
    return Penalty(kl.direction, kl.temperature, kl.top_k, reference.logit_scale, reference.logit_softcap)


def _figures(sources: tuple[str, ...], found: BySource) -> dict[str, SourceFigures]:
    """Figures of every source that has rows."""
    rows, tokens, nats = (np.asarray(column).tolist() for column in (found.rows, found.tokens, found.nats))
    of_text = (found.bytes, found.text_nats)
    sizes, text_nats = ([None] * len(sources) if each is None else np.asarray(each).tolist() for each in of_text)
    return {
        name: SourceFigures(nats[number], tokens[number], sizes[number], text_nats[number])
        for number, name in enumerate(sources)
        if rows[number]
    }

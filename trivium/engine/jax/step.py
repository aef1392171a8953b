"""A state and a batch -> the next state: everything that is compiled, once for every shape of a batch.

    state, loss, meta = program.train_step(state, batch, key, accumulate_steps, now, terms, sources)
    loss_sum, tokens, meta = program.val_step(state.params, batch, terms, sources)

Micro-batches are scanned; their gradients are of an objective divided by the loss tokens of the whole batch, and
update once. The state's buffers are donated: the one given is gone, the one returned takes its place. Where the
loss or the gradients are not finite, or over their limits, the state is returned as it was. What changes from step to
step or from stage to stage is an argument, so that nothing but a shape, an objective or an optimizer compiles.
Compilations are counted, since a step that compiles each time is a mistake, and slow.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax, monitoring
from jax.sharding import Mesh
from numpy.typing import NDArray

from trivium.engine.base import POSITIONS, ContextMethod, TokenLosses
from trivium.engine.jax.attention import AttendAs, attend
from trivium.engine.jax.average import following
from trivium.engine.jax.context_parallel.context import attend_shared, context_size, head_tail, shared_slots
from trivium.engine.jax.layers import Rotations
from trivium.engine.jax.loss import (
    LogitForm,
    Losses,
    LossTargets,
    Number,
    Penalty,
    ReferenceStates,
    Weights,
    own_losses,
    sliced_loss,
)
from trivium.engine.jax.model import Design, Params
from trivium.engine.jax.optim import Optimizer, StepRates, clipped, norm_of
from trivium.engine.jax.sharding import (
    CONTEXT,
    keep_places,
    keep_rows,
    put_rows,
    put_slots,
    rows_multiple,
    slots_of,
    tokens_of,
)
from trivium.rows.batch import IGNORED, PADDING, Batch

Key = Array | NDArray[np.uint32]
NO_SOURCE = -1  # of a row that only fills a micro-batch


class DeviceBatch(NamedTuple):
    """Micro-batches that a compiled step scans; slots in the order in which devices share them (`context`)."""

    tokens: Array  # (S, B, T)
    targets: Array  # (S, B, T); 0 where a token does not count
    loss_mask: Array  # (S, B, T) bool
    segments: Array  # (S, B, T)
    positions: Array  # (S, B, T)
    source: Array  # (S, B)

    @classmethod
    def of(cls, batch: Batch, micro_batch_size: int | None, mesh: Mesh) -> "DeviceBatch":
        """Micro-batches of one size, filled up with padding where the batch's rows or slots do not divide."""
        passes = 1 if micro_batch_size is None else math.ceil(batch.num_rows / micro_batch_size)
        multiple = rows_multiple(mesh)
        size = math.ceil(batch.num_rows / passes / multiple) * multiple
        loss_mask = batch.targets != IGNORED
        context = mesh.shape[CONTEXT]
        slots = shared_slots(batch.seq_len, context)
        order = head_tail(slots, context)

        def put(array: NDArray[Any], empty: int) -> Array:
            room = (passes * size, slots)[: array.ndim]
            if array.shape != room:
                filling = [(0, wanted - given) for wanted, given in zip(room, array.shape, strict=True)]
                array = np.pad(array, filling, constant_values=empty)
            if array.ndim == 1:
                return put_rows(array.reshape(passes, size), mesh)
            return put_slots((array if context == 1 else array[:, order]).reshape(passes, size, slots), mesh)

        return cls(
            tokens=put(batch.tokens, 0),
            targets=put(np.where(loss_mask, batch.targets, 0), 0),
            loss_mask=put(loss_mask, 0),
            segments=put(batch.segments, PADDING),
            positions=put(batch.positions, 0),
            source=put(batch.source, NO_SOURCE),
        )


class TrainState(NamedTuple):
    """All that training changes; laid out over devices as its arrays are."""

    params: Params  # flat, by the torch engine's names and shapes
    opt_state: Any  # what the optimizer's `init` made of them
    average: Params  # what follows them; empty where nothing does


class FrozenReference(NamedTuple):
    """A reference: its parameters, in the precision that it is held in, its own rotary positions, its term's weight."""

    params: Params
    rotations: Rotations
    beta: Number


class StageTerms(NamedTuple):
    """What a stage brings: arguments of a compiled step."""

    rotations: Rotations
    z_loss: Number = np.float32(0)
    cross_entropy: Number = np.float32(1)
    average_rate: Number = np.float32(0)  # how far an average moves towards the parameters at an update
    references: tuple[FrozenReference, ...] = ()  # in the order of the design's
    loss_weight: NDArray[np.float32] | None = None  # of every source that a batch may have rows of; None: 1


class BySource(NamedTuple):
    """Figures of every source that a batch may have rows of, on all processes: (sources,) each."""

    rows: Array
    tokens: Array  # that count in the loss
    nats: Array
    bytes: Array | None = None  # of text in these tokens, where that is known
    text_nats: Array | None = None  # of those that have bytes


class Meta(NamedTuple):
    """What a step did, beside its loss."""

    loss_tokens: Array  # () tokens of the whole batch
    by_source: BySource
    grad_norm: Array  # () before clipping
    made: Array  # () bool: whether the update was made
    sums: Mapping[str, Array]  # over loss tokens: z, and of each reference its term by name, and NAME_nats
    loss_by_row: Array  # (S, B) the mean over a row's loss tokens


class ValMeta(NamedTuple):
    """A batch's figures, evaluated without an update."""

    by_source: BySource
    by_position: Array  # (len(POSITIONS), 2): nats and tokens
    nats: Array  # (S, B, T) the loss of every target


class ReferenceDesign(NamedTuple):
    """A term that is measured to a reference, by its name."""

    name: str
    model: Design
    penalty: Penalty


@dataclass(frozen=True, slots=True)
class StepDesign:
    """What decides the code of a step: hashable, so that the same step is compiled once in a process."""

    design: Design
    optimizer: Optimizer
    document_mask: bool = True
    references: tuple[ReferenceDesign, ...] = ()
    frozen: frozenset[str] = frozenset()  # parameters without gradients and updates
    token_losses: TokenLosses | None = None  # the user's own, in place of cross-entropy and all terms
    row_by_row: bool = False  # attention on one CPU: a row's scores stay in the cache
    context_method: ContextMethod = "gather"  # attention where devices share rows
    exact: bool = False  # a GPU's kernels whose bits differ from run to run are replaced


class Program:
    """The compiled functions of one `StepDesign`."""

    def __init__(self, how: StepDesign) -> None:
        self.how = how
        exact: dict[str, Any] = {"compiler_options": {"xla_gpu_deterministic_ops": True}} if how.exact else {}
        self.train_step = jax.jit(self._train_step, static_argnums=(3, 6), donate_argnums=0, **exact)
        self.val_step = jax.jit(self._val_step, static_argnums=3)

    def _train_step(
        self,
        state: TrainState,
        batch: DeviceBatch,
        key: Key,
        accumulate_steps: int,
        now: StepRates,
        terms: StageTerms,
        sources: int,
    ) -> tuple[TrainState, Array, Meta]:
        """One update from `accumulate_steps` micro-batches; the loss is the mean plain cross-entropy.

        `sources` is how many names `batch.source` counts. The decoder draws nothing from the key.
        """
        assert len(batch.tokens) == accumulate_steps, "accumulate_steps is the number of micro-batches"
        loss_tokens = batch.loss_mask.sum()
        gradients, nats, sums = self._gradients(state.params, batch, _scale(batch, terms), terms)
        loss, norm = nats.sum() / jnp.maximum(1, loss_tokens), norm_of(gradients)
        made = jnp.isfinite(loss) & jnp.isfinite(norm) & (loss <= now.loss_limit) & (norm <= now.norm_limit)
        gradients = clipped(gradients, norm, now.grad_clip)
        params, opt_state = self._updated(gradients, state, now)
        updated = TrainState(params, opt_state, following(state.average, params, terms.average_rate))
        state = jax.tree.map(lambda new, old: jnp.where(made, new, old), updated, state)
        by_row = nats / jnp.maximum(1, batch.loss_mask.sum(axis=2))
        meta = Meta(loss_tokens, _by_source(batch, nats, sources), norm, made, sums, by_row)
        return keep_places(state), loss, keep_places(meta)

    def _updated(self, gradients: Params, state: TrainState, now: StepRates) -> tuple[Params, Any]:
        """Parameters and optimizer state after an update; what is frozen has no part in it, and stays as it is."""
        frozen = self.how.frozen
        params, opt_state = without(state.params, frozen), without(state.opt_state, frozen)
        params, opt_state = self.how.optimizer.update(gradients, opt_state, params, now)
        return within(params, state.params, frozen), within(opt_state, state.opt_state, frozen)

    def _gradients(
        self, params: Params, batch: DeviceBatch, scale: Array, terms: StageTerms
    ) -> tuple[Params, Array, dict[str, Array]]:
        """Summed over micro-batches; nats by row (S, B), and sums of the objective's other terms.

        The objective has no gradient by what is frozen: the backward pass ends above it.
        """
        frozen = {name: params[name] for name in self.how.frozen}
        params = without(params, self.how.frozen)

        def objective(params: Params, part: DeviceBatch) -> tuple[Array, tuple[Array, dict[str, Array]]]:
            params = {**params, **frozen}
            betas = tuple(each.beta for each in terms.references)
            losses = self._losses(params, part, Weights(scale, terms.z_loss, betas, terms.cross_entropy), terms)
            by_row = slots_of(losses.nats, part.tokens.shape).sum(axis=1)
            return losses.objective, (by_row, self._sums(losses, _targets(part, terms)))

        of_part = jax.grad(objective, has_aux=True)
        if len(batch.tokens) == 1:
            gradients, (nats, sums) = of_part(params, jax.tree.map(lambda array: array[0], batch))
            return keep_places(gradients), nats[None], sums

        def add(total: Params, part: DeviceBatch) -> tuple[Params, tuple[Array, dict[str, Array]]]:
            gradients, figures = of_part(params, part)
            return keep_places(jax.tree.map(jnp.add, total, gradients)), figures

        nothing = keep_places(jax.tree.map(jnp.zeros_like, params))
        gradients, (nats, sums) = lax.scan(add, nothing, batch)
        return gradients, nats, {name: part.sum() for name, part in sums.items()}

    def _sums(self, losses: Losses, targets: LossTargets) -> dict[str, Array]:
        """Over tokens, by their weights."""
        if losses.figures is not None:
            return {name: figure.sum() for name, figure in losses.figures.items()}
        sums = {"z": targets.total(losses.z)}
        for each, kl, nats in zip(self.how.references, losses.kl, losses.reference_nats, strict=True):
            sums |= {each.name: targets.total(kl), f"{each.name}_nats": targets.total(nats)}
        return sums

    def _losses(self, params: Params, part: DeviceBatch, weights: Weights, terms: StageTerms) -> Losses:
        """Of one micro-batch, (B, T)."""
        design = self.how.design
        references = tuple(
            ReferenceStates(*self._hidden(each.model, held.params, held.rotations, part))
            for each, held in zip(self.how.references, terms.references, strict=True)
        )
        hidden, matrix = self._hidden(design, params, terms.rotations, part)
        targets, form = _targets(part, terms), LogitForm.of(design.spec)
        if self.how.token_losses is not None:
            places = [tokens_of(each) for each in (part.tokens, *self._places(part))]
            return own_losses(self.how.token_losses, hidden, matrix, targets, places, form, weights, references)
        penalties = tuple(each.penalty for each in self.how.references)
        return sliced_loss(form, penalties, hidden, matrix, targets, weights, references)

    def _hidden(self, design: Design, params: Params, tables: Rotations, part: DeviceBatch) -> tuple[Array, Array]:
        """Hidden states (B * T, width) of a micro-batch, and the matrix from them to logits."""
        if design.make is not None:
            own = design.own_model(params)
            hidden = own(part.tokens, *self._places(part))
            return tokens_of(hidden), own.lm_head
        model, positions = design.decoder(params), part.positions
        if not self.how.document_mask:
            positions = jnp.minimum(_row_positions(part.tokens.shape[1]), len(tables.full.cos) - 1)
        hidden = model(part.tokens, tables.at(positions), self._attend(part))
        return tokens_of(hidden), model.lm_head

    def _attend(self, part: DeviceBatch) -> AttendAs:
        segments = part.segments if self.how.document_mask else None
        if context_size() > 1:
            return attend_shared(self.how.context_method, segments)
        return partial(attend, segments=segments, row_by_row=self.how.row_by_row)

    def _places(self, part: DeviceBatch) -> tuple[Array, Array]:
        """Positions and documents (B, T); joined documents are one, which counts positions through the row."""
        if self.how.document_mask:
            return part.positions, part.segments
        positions = jnp.broadcast_to(_row_positions(part.tokens.shape[1]), part.tokens.shape)
        return positions, jnp.where(part.segments == PADDING, PADDING, 0)

    def _val_step(
        self, params: Params, batch: DeviceBatch, terms: StageTerms, sources: int, token_bytes: Array | None = None
    ) -> tuple[Array, Array, ValMeta]:
        """Summed cross-entropy, loss tokens, and figures; no update is made."""
        design = self.how.design

        def nats_of(part: DeviceBatch) -> Array:
            hidden, matrix = self._hidden(design, params, terms.rotations, part)
            targets = LossTargets(tokens_of(part.targets), tokens_of(part.loss_mask))
            losses = sliced_loss(LogitForm.of(design.spec), (), hidden, matrix, targets, Weights(), ())
            return slots_of(losses.nats, part.tokens.shape)

        nats = keep_rows(lax.map(nats_of, batch), axis=1)
        by_source = _by_source(batch, nats.sum(axis=2), sources)
        if token_bytes is not None:
            sizes = jnp.where(batch.loss_mask, token_bytes[batch.targets], 0)
            of_text = jnp.where(sizes > 0, nats, 0).sum(axis=2)
            found = _summed(batch, sizes.sum(axis=2), sources), _summed(batch, of_text, sources)
            by_source = by_source._replace(bytes=found[0], text_nats=found[1])
        figures = keep_places((by_source, _by_position(batch, nats)))
        return by_source.nats.sum(), batch.loss_mask.sum(), ValMeta(*figures, nats)


def without(tree: Any, frozen: frozenset[str]) -> Any:
    """A tree in which no dict has entries of frozen parameters: parameters, or an optimizer's state of them."""
    if not frozen:
        return tree

    def is_by_name(node: Any) -> bool:
        return isinstance(node, dict) and not frozen.isdisjoint(node)

    def cut(node: Any) -> Any:
        return {name: each for name, each in node.items() if name not in frozen} if is_by_name(node) else node

    return jax.tree.map(cut, tree, is_leaf=is_by_name)


def within(tree: Any, whole: Any, frozen: frozenset[str]) -> Any:
    """The same with the entries that it was without, as the whole tree has them."""
    if not frozen:
        return tree

    def is_by_name(node: Any) -> bool:
        return isinstance(node, dict) and not frozen.isdisjoint(node)

    def join(old: Any, new: Any) -> Any:
        return {name: new.get(name, each) for name, each in old.items()} if is_by_name(old) else new

    return jax.tree.map(join, whole, tree, is_leaf=is_by_name)


def _row_positions(slots: int) -> Array:
    """Of every slot, where documents are joined."""
    return jnp.asarray(head_tail(slots, context_size()))


def _targets(part: DeviceBatch, terms: StageTerms) -> LossTargets:
    """Of all slots of a micro-batch, with the weights of their rows' sources."""
    weights = None
    if terms.loss_weight is not None:
        of_rows = jnp.asarray(terms.loss_weight)[part.source]
        weights = tokens_of(jnp.broadcast_to(of_rows[:, None], part.targets.shape))
    return LossTargets(tokens_of(part.targets), tokens_of(part.loss_mask), weights)


def _scale(batch: DeviceBatch, terms: StageTerms) -> Array:
    """One over the sum of the weights of all loss tokens, of which every source's are counted as whole numbers."""
    if terms.loss_weight is None:
        return 1 / jnp.maximum(1, batch.loss_mask.sum())
    counts = _summed(batch, batch.loss_mask.sum(axis=2), len(terms.loss_weight))
    total = (counts * terms.loss_weight).sum()
    return 1 / jnp.where(total > 0, total, 1)


def _by_source(batch: DeviceBatch, nats: Array, sources: int) -> BySource:
    """Sums over the rows of each source; nats by row (S, B)."""
    rows, tokens = jnp.ones_like(batch.source), batch.loss_mask.sum(axis=2)
    return BySource(*(_summed(batch, by_row, sources) for by_row in (rows, tokens, nats)))


def _by_position(batch: DeviceBatch, nats: Array) -> Array:
    """Sums over the positions of each range; nats (S, B, T)."""
    ranges = jnp.searchsorted(jnp.array(POSITIONS), batch.positions.reshape(-1), side="right") - 1
    figures = (jnp.where(batch.loss_mask, nats, 0), batch.loss_mask)
    sums = [jax.ops.segment_sum(each.reshape(-1).astype(jnp.float32), ranges, len(POSITIONS)) for each in figures]
    return jnp.stack(sums, axis=1)


def _summed(batch: DeviceBatch, by_row: Array, sources: int) -> Array:
    """Figures by row (S, B) -> by source."""
    of_source = batch.source[..., None] == jnp.arange(sources)
    return jnp.where(of_source, by_row[..., None], 0).sum(axis=(0, 1))


@cache
def program(how: StepDesign) -> Program:
    """The functions of a `StepDesign`, shared by all engines of a process."""
    return Program(how)


COMPILED = "/jax/core/compile/backend_compile_duration"


@dataclass(slots=True)
class Compilations:
    """Of this process, so far; what a cache on disk gives counts too."""

    count: int = 0
    seconds: float = 0.0

    def took(self, event: str, duration_secs: float, **_: Any) -> None:
        """Called by JAX for everything that it times."""
        if event == COMPILED:
            self.count += 1
            self.seconds += duration_secs


@cache
def compilations() -> Compilations:
    """The one count of this process, from its first call on."""
    found = Compilations()
    monitoring.register_event_duration_secs_listener(found.took)
    return found

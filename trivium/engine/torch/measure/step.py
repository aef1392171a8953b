"""An engine's step on fake tensors -> the peak of a rank's memory, by its parts.

Two steps are taken, since the first makes the optimizer's state, by a short row; the second is counted. Of the passes
of a step two are enough: the second has the first one's gradients beside it.

Memory grows by the same bytes with every layer, so that few layers tell it of many. But the time of the peak does not
stay the same: with more layers it may move from the loss to the end of the backward pass. So the peaks of a step's
phases (the last layer's backward pass, the first one's, the update, ...) are extended one by one, and the largest wins.
Two layers at either end are phases of their own: memory changes evenly from the second to the last but one. Where some
layers are frozen and others are not, all of them are measured, which takes as much longer.
"""

import gc
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._pytree import tree_leaves

from trivium.engine.base import StepSettings
from trivium.engine.memory import KINDS, Measured, Parts
from trivium.engine.torch.attention import (
    PLAIN,
    Layout,
    Segments,
    WholeRows,
    block_mask,
    document_starts,
    is_causal,
    layout_of,
    within,
)
from trivium.engine.torch.checkpoint.weights import fill
from trivium.engine.torch.context_parallel.layouts import stretch_layout
from trivium.engine.torch.context_parallel.slots import SlotShare
from trivium.engine.torch.context_parallel.spans import Spans
from trivium.engine.torch.engine import TorchEngine
from trivium.engine.torch.loss import slice_tokens
from trivium.engine.torch.measure.replace import replaced_in_engine
from trivium.engine.torch.measure.storages import Storages
from trivium.model.folder import read_spec
from trivium.model.foreign import layer_lists
from trivium.model.foreign import with_layers as foreign_layers
from trivium.model.parts import SUBLAYERS, parts_of
from trivium.model.spec import AttentionSpec
from trivium.rows.batch import IGNORED, Batch

FEW_LAYERS = 3
LONGEST_PERIOD = 8  # layers that differ without a pattern are taken as equal
SHORT = 128  # slots
GROUPS = ("matrix", "embedding", "unembedding", "rest")


def peak_parts(step: Measured) -> Parts:
    """The parts of a rank's memory when it holds most; call it inside `fake_rank`."""
    layers = step.settings.spec.layers
    period = _period(step)
    few = -(-FEW_LAYERS // period) * period
    if layers <= few + period or _some_are_frozen(step):
        return max(peaks_of(step).values(), key=_total)
    less, more = (peaks_of(with_layers(step, count)) for count in (few, few + period))
    extended = [_extended(less[phase], more[phase], (layers - few) / period) for phase in less.keys() & more.keys()]
    return max(extended, key=_total)


def _period(step: Measured) -> int:
    """After how many layers they repeat themselves: some may have no rotary positions, and some may slide."""
    spec = step.settings.spec
    dropped = (step.stage.rope or spec.rope).dropped
    kinds = [(number in dropped, number in spec.sliding) for number in range(spec.layers)]
    if spec.foreign is not None:
        kinds = list(zip(*layer_lists(spec).values(), strict=True)) or kinds
    sizes = range(1, LONGEST_PERIOD + 1)
    return next((size for size in sizes if kinds == [kinds[n % size] for n in range(spec.layers)]), 1)


def _some_are_frozen(step: Measured) -> bool:
    """Whether layers differ in what is frozen of them."""
    spec = step.settings.spec
    frozen = parts_of(step.stage.freeze, spec)
    of_layers = {tuple(f"layers.{layer}.{each}" in frozen for each in SUBLAYERS) for layer in range(spec.layers)}
    return len(of_layers) > 1


def with_layers(step: Measured, layers: int) -> Measured:
    """The same step of a model with another number of layers."""
    spec = step.settings.spec
    fewer = replace(spec, layers=layers) if spec.foreign is None else foreign_layers(spec, layers)
    return replace(step, settings=replace(step.settings, spec=fewer))


def _extended(less: Parts, more: Parts, times: float) -> Parts:
    return {kind: round(less[kind] + (more[kind] - less[kind]) * times) for kind in KINDS}


def _total(parts: Parts) -> int:
    return sum(parts.values())


def peaks_of(step: Measured) -> dict[str, Parts]:
    """The peak of each phase of a step."""
    storages = Storages()
    spec = step.settings.spec
    with (
        replaced_in_engine(fill, lambda *_: None),  # the reference's folder may not be there yet
        replaced_in_engine(read_spec, lambda _, **__: spec),
        replaced_in_engine(layout_of, partial(_layout, storages)),
        replaced_in_engine(stretch_layout, partial(_stretches, storages)),
        replaced_in_engine(slice_tokens, lambda _, vocab: slice_tokens("cuda", vocab)),
        storages.counting(),
    ):
        engine = TorchEngine(replace(step.settings, device="cpu", compile=False, deterministic=False, draw=False))
        engine.enter(step.stage)
        size = min(engine.stage.micro_batch_size or step.rows, step.rows)
        batch, now = _batch(min(step.rows, 2 * size), step.stage.seq_len), _now(step)
        storages.mark(engine.model.parameters(), "weights")
        for _ in range((step.stage.average and step.stage.average.last) or 0):
            engine.add_to_average()
        storages.mark((tensor for copy in engine.copies for tensor in copy.values()), "average")
        for reference in engine.references.values():
            storages.mark(reference.model.parameters(), "reference")
        with _optimizers_marked(storages):
            engine.step(_batch(1, min(step.stage.seq_len, SHORT)), now)
        gc.collect()
        clock = Clock(storages)
        gc.disable()  # memory that only a collection frees is held in a real step too
        try:
            with _optimizers_marked(storages, clock), clock.watching(engine.model.layers):
                engine.step(batch, now)
        finally:
            gc.enable()
    return clock.peaks()


@dataclass(frozen=True, slots=True)
class _BlockMasked:
    """A GPU's attention by the memory that it takes: its mask, and what any kernel keeps that makes no square."""

    blocks: tuple[BlockMask, ...]
    inner: Layout

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, how: AttentionSpec = PLAIN) -> Tensor:
        return self.inner.attend(queries, keys, values)


def _layout(
    storages: Storages,
    segments: Segments,
    document_mask: bool,
    device: torch.device,
    kinds: Sequence[AttentionSpec] = (PLAIN,),
) -> Layout:
    """What `layout_of` gives on a GPU, though the tensors are the CPU's."""
    is_whole = not document_mask or (segments == segments[:, :1]).all()
    if is_whole and all(is_causal(kind, segments.shape[1]) for kind in kinds):
        return WholeRows()
    with storages.all_are("mask"):
        starts = torch.tensor(document_starts(segments), device=device)
        masks = tuple(block_mask(within(starts, window)) for window in {kind.window for kind in kinds})
        return _BlockMasked(masks, WholeRows())


def _stretches(
    storages: Storages,
    segments: Segments,
    share: SlotShare,
    device: torch.device,
    kinds: Sequence[AttentionSpec] = (PLAIN,),
) -> Layout:
    """What `stretch_layout` gives there."""
    with storages.all_are("mask"):
        starts = torch.tensor(document_starts(segments), device=device)
        seen = [within(starts, window) for window in {kind.window for kind in kinds}]
        masks = tuple(block_mask(each, first, share.stretch) for each in seen for first in share.firsts)
        return _BlockMasked(masks, Spans.of(segments, share))


def _batch(rows: int, seq_len: int) -> Batch:
    """Rows of two documents each; one target does not count, as in almost every batch."""
    shape = rows, seq_len
    zeros = np.zeros(shape, np.int32)
    targets = zeros.copy()
    targets[:, -1] = IGNORED
    documents, positions = divmod(np.arange(shape[1], dtype=np.int32), -(-shape[1] // 2))
    segments, positions = (np.broadcast_to(each, shape) for each in (documents, positions))
    return Batch(zeros, targets, segments, positions, np.zeros(len(zeros), np.int32), ("measured",))


def _now(step: Measured) -> StepSettings:
    rates = dict.fromkeys(GROUPS, 1e-3)
    return StepSettings(0, 0, step.stage.seq_len, step.rows, 0, 1.0, rates, momentum=0.9, weight_decay=0.1)


@contextmanager
def _optimizers_marked(storages: Storages, clock: "Clock | None" = None) -> Iterator[None]:
    """Inside, gradients and optimizers' states are known as what they are."""

    def before(optimizer: Optimizer, *_: Any) -> None:
        if clock is not None:
            clock.begin("update")
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        storages.mark((each.grad for each in parameters if each.grad is not None), "gradients")
        storages.of_others = "update"

    def after(optimizer: Optimizer, *_: Any) -> None:
        states = (value for state in optimizer.state.values() for value in state.values())
        storages.mark((value for value in states if isinstance(value, Tensor)), "optimizer")
        storages.of_others = "activations"

    hooks = [register_optimizer_step_pre_hook(before), register_optimizer_step_post_hook(after)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


@dataclass(slots=True)
class Clock:
    """Which phases of a step began when."""

    storages: Storages
    begun: list[tuple[int, tuple[str, ...]]] = field(default_factory=list)
    passes: int = 0

    def __post_init__(self) -> None:
        self.begin("start")

    def begin(self, *phases: str) -> None:
        """From now on the memory is that of these phases; of none between the layers at either end."""
        self.begun.append((self.storages.time, phases))

    @contextmanager
    def watching(self, layers: nn.ModuleList) -> Iterator[None]:
        """Inside, each layer's passes begin phases."""
        hooks = []
        for number, layer in enumerate(layers):
            names = _names(number, len(layers))
            hooks += [
                layer.register_forward_pre_hook(partial(self._enters, number, names)),
                layer.register_forward_hook(partial(self._leaves, number == len(layers) - 1, names)),
            ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _enters(self, number: int, names: Sequence[str], *_: Any) -> None:
        if not _recomputing():
            self.passes += number == 0
            self.begin(*(f"forward {self.passes}, {name}" for name in names))

    def _leaves(self, is_last: bool, names: Sequence[str], _layer: nn.Module, _inputs: Any, output: Any) -> None:
        if _recomputing():
            return
        if is_last:
            self.begin(f"loss {self.passes}")
        phases = [f"backward {self.passes}, {name}" for name in names]
        for value in tree_leaves(output):
            if isinstance(value, Tensor) and value.requires_grad:
                value.register_hook(lambda _: self.begin(*phases))  # type: ignore[no-untyped-call]

    def peaks(self) -> dict[str, Parts]:
        """The largest sum of bytes in each phase, by kind."""
        changes = [(held.born, held.bytes, held.kind) for held in self.storages.each]
        changes += [(held.died, -held.bytes, held.kind) for held in self.storages.each if held.died is not None]
        changes.sort()
        now, at = Counter[str](), 0
        peaks: dict[str, Parts] = {}
        ends = [*(time for time, _ in self.begun[1:]), self.storages.time]
        for (start, phases), end in zip(self.begun, ends, strict=True):
            while at < len(changes) and changes[at][0] <= end:
                time, size, kind = changes[at]
                if time > start:
                    _raise_peaks(peaks, phases, now)
                now[kind] += size
                at += 1
            _raise_peaks(peaks, phases, now)
        return peaks


def _raise_peaks(peaks: dict[str, Parts], phases: Sequence[str], now: Counter[str]) -> None:
    """Where more is held now than ever before in a phase, this is its peak."""
    for phase in phases:
        if now.total() > sum(peaks.get(phase, {}).values()):
            peaks[phase] = {kind: now[kind] for kind in KINDS}


def _names(number: int, layers: int) -> list[str]:
    """Of a layer near either end: `layer 0`, `layer 1`, `layer -2`, `layer -1`."""
    return [f"layer {place}" for place in (0, 1, -2, -1) if number == place % layers]


def _recomputing() -> bool:
    """Whether a forward pass is part of a backward one."""
    return torch._C._current_graph_task_id() != -1

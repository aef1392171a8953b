"""A decoder on many ranks: matrices split over the tensor axis, everything sharded over the others.

    matrices     heads, feed-forward and vocabulary over `tensor`; all of it over `shard`
    norms        over `shard` alone; ranks of the tensor axis hold the same
    replicate    copies of that (hybrid sharding)

FSDP gathers a layer before it is used and lets it go after, forward and backward. The embedding is gathered once a
pass, and so is the last norm with the lm_head; a model of the user's own has these in one part with whatever is not
in its layers, and so has a decoder with tied embeddings. `reshard_after_forward` lets go all of them after the forward
pass, or none, so that each is gathered twice or once. In bfloat16 all of it is gathered as bfloat16, norms too.
Gradients are summed in float32, not averaged: all ranks divide the objective by the same number.

Between ranks a step adds one call, on the devices, after the last pass: the gradients' norm, the loss tokens, all
figures and flags. Gradients are divided by the loss tokens of the whole batch where they are clipped, in one pass.
"""

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch import distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard
from torch.nn.functional import pad
from torch.nn.utils import get_total_norm

from trivium.engine.base import ContextMethod, EngineSettings, SourceFigures
from trivium.engine.mesh import MeshShape, refuse_uneven_matrices
from trivium.engine.torch.context_parallel.axis import WHOLE, ContextAxis
from trivium.engine.torch.model import Decoder, LanguageModel
from trivium.engine.torch.ranks import join

CLIP_EPS = 1e-6  # torch's own
REPLICATE, SHARD, TENSOR = "replicate", "shard", "tensor"


class LocalModel:
    """A decoder that one process holds whole, so that there is nobody to ask."""

    rank = 0
    mesh = None

    def __init__(self, model: LanguageModel) -> None:
        self.model = model

    def begin_pass(self, *, is_last: bool) -> None:
        """Called before each micro-batch's pass."""

    def end_passes(self) -> None:
        """Called after passes that nothing goes backward from."""

    def share_rows(self, context: int, method: ContextMethod) -> ContextAxis:
        """From now on this many ranks share the slots of each row."""
        assert context == 1, "there is one process"
        return WHOLE

    def sum(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Sum over the ranks that have rows of their own."""
        return values

    def divisor(self, weight: float, slots: int) -> float:
        """What the objective is divided by before the passes, known without an exchange: the weight of all tokens."""
        return weight or 1

    def sum_with_norm(self, gradients: Sequence[Tensor], values: Tensor) -> tuple[Tensor, Tensor]:
        """The norm of all gradients, and values summed over the ranks that have rows of their own, on the device."""
        return get_total_norm(gradients), values


class ShardedModel:
    """A decoder without storage, shared out to the ranks of a launch: its parameters become DTensors of their mesh."""

    def __init__(
        self, model: LanguageModel, shape: MeshShape, device: torch.device, reshard_after_forward: bool | None = None
    ) -> None:
        self.rank = join().rank
        self.model = model
        self.shape = shape
        self.reshard_after_forward = reshard_after_forward
        self.mesh, self._data = _mesh_and_data_group(shape, device.type)
        self._shard(model)

    def begin_pass(self, *, is_last: bool) -> None:
        """Copies of the model add up their gradients once a step; the ranks of one copy, in every pass."""
        if self.shape.replicate > 1 and isinstance(self.model, FSDPModule):
            self.model.set_requires_all_reduce(is_last)

    def end_passes(self) -> None:
        """Let go what a backward pass would have used: until then the gathered weights pass for the model's own."""
        for unit in self._units():
            unit.reshard()

    def share_rows(self, context: int, method: ContextMethod) -> ContextAxis:
        """The ranks that share rows are neighbours on the shard axis; what they hold of the model stays theirs."""
        self.shape = self.shape.with_context(context)
        return ContextAxis(_context_mesh(self.mesh, context), method) if context > 1 else WHOLE

    def sum(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Ranks that share rows have the same values: each has a part in the sum."""
        summed = torch.from_numpy(values / self.shape.context)
        dist.all_reduce(summed, group=self._data)
        return summed.numpy()

    def divisor(self, weight: float, slots: int) -> float:
        """The slots of all rows, of which readers have as many each: tokens' weight is not known before the passes."""
        return slots * self.shape.replicate * self.shape.shard

    def sum_with_norm(self, gradients: Sequence[Tensor], values: Tensor) -> tuple[Tensor, Tensor]:
        """In one call for both; ranks of the tensor axis have the same rows, and so the same values."""
        summed = torch.cat((square_of(gradients).to(values.dtype)[None], values / self.shape.tensor))
        dist.all_reduce(summed)
        return summed[0].sqrt().float(), summed[1:]

    def _shard(self, model: LanguageModel) -> None:
        refuse_uneven_matrices(self.shape, model.spec)
        gathered = MixedPrecisionPolicy(param_dtype=model.precision, reduce_dtype=torch.float32)
        if model.precision == torch.float32:
            gathered = MixedPrecisionPolicy()
        data: DeviceMesh = self.mesh[REPLICATE, SHARD] if self.shape.replicate > 1 else self.mesh[SHARD]
        if self.shape.tensor > 1:
            model.split_matrices(self.mesh[TENSOR])
        lets_go = self.reshard_after_forward
        of_layers, of_others = lets_go is not False, lets_go is True
        for layer in model.layers:
            fully_shard(layer, mesh=data, mp_policy=gathered, reshard_after_forward=of_layers)
        if isinstance(model, Decoder) and model.unembedding is not None:
            head = [model.norm, model.unembedding]
            fully_shard(model.embedding, mesh=data, mp_policy=gathered, reshard_after_forward=of_others)
            fully_shard(head, mesh=data, mp_policy=gathered, reshard_after_forward=of_others)
        fully_shard(model, mesh=data, mp_policy=gathered, reshard_after_forward=of_others)
        register_fsdp_forward_method(model, "states")
        register_fsdp_forward_method(model, "next_logits")
        if hasattr(model, "cached_logits"):
            register_fsdp_forward_method(model, "cached_logits")
        for unit in self._units():
            unit.set_gradient_divide_factor(1.0)
            unit.set_force_sum_reduction_for_comms(True)

    def _units(self) -> Iterator[FSDPModule]:
        return (module for module in self.model.modules() if isinstance(module, FSDPModule))


HeldModel = LocalModel | ShardedModel


def hold(model: LanguageModel, settings: EngineSettings, device: torch.device) -> HeldModel:
    """A decoder without storage as this launch's ranks hold it."""
    shape, reshard = settings.mesh, settings.reshard_after_forward
    return LocalModel(model) if shape.size == 1 else ShardedModel(model, shape, device, reshard)


@cache
def _mesh_and_data_group(shape: MeshShape, device_type: str) -> tuple[DeviceMesh, dist.ProcessGroup]:
    """One mesh for all models of a process, and the group of ranks that have rows of their own."""
    sizes, names = (shape.replicate, shape.parameter_shards, shape.tensor), (REPLICATE, SHARD, TENSOR)
    mesh = init_device_mesh(device_type, sizes, mesh_dim_names=names)
    return mesh, mesh[REPLICATE, SHARD]._flatten("data").get_group()


@cache
def _context_mesh(mesh: DeviceMesh, context: int) -> DeviceMesh:
    """This many neighbours on the shard axis; all ranks ask in the same order."""
    groups, own = f"groups_of_{context}", f"context_{context}"
    divided = mesh._unflatten(SHARD, (mesh[SHARD].size() // context, context), (groups, own))
    return divided[own]


def local_part(tensor: Tensor) -> tuple[Tensor, tuple[slice, ...]]:
    """What this rank holds of a tensor, and where that lies in the whole one."""
    if not isinstance(tensor, DTensor):
        return tensor, tuple(slice(0, size) for size in tensor.shape)
    return tensor.to_local(), part_at(tensor, own_place(tensor.device_mesh))


def part_at(tensor: DTensor, place: Mapping[str, int]) -> tuple[slice, ...]:
    """Where the part of the rank at a place of the mesh lies in the whole tensor; nobody is asked."""
    return split_at(tensor.shape, tensor.device_mesh, tensor.placements, place)


def split_at(
    shape: torch.Size, mesh: DeviceMesh, placements: Sequence[Placement], place: Mapping[str, int]
) -> tuple[slice, ...]:
    """The same of a tensor that is known by its shape and its placements on a mesh."""
    where = [slice(0, size) for size in shape]
    # The tensor axis, which is the last one, splits first, then FSDP what is left; each as torch.chunk does.
    for axis, placement in reversed(list(enumerate(placements))):
        if isinstance(placement, Shard | _StridedShard):
            start, stop = where[placement.dim].start, where[placement.dim].stop
            size = math.ceil((stop - start) / mesh.size(axis))
            first = min(start + size * place[axis_names(mesh)[axis]], stop)
            where[placement.dim] = slice(first, min(first + size, stop))
    return tuple(where)


def places(mesh: DeviceMesh) -> list[dict[str, int]]:
    """Every rank's index on each axis of a mesh, in the order of the ranks."""
    return [_named(mesh, indices) for indices in itertools.product(*map(range, mesh.shape))]


def own_place(mesh: DeviceMesh) -> dict[str, int]:
    """This rank's index on each axis of a mesh."""
    indices = mesh.get_coordinate()
    assert indices is not None, "every rank of a launch is in its mesh"
    return _named(mesh, indices)


def axis_names(mesh: DeviceMesh) -> tuple[str, ...]:
    assert mesh.mesh_dim_names is not None, "every mesh here has named axes"
    return mesh.mesh_dim_names


def _named(mesh: DeviceMesh, indices: Iterable[int]) -> dict[str, int]:
    return dict(zip(axis_names(mesh), indices, strict=True))


def whole(tensor: Tensor) -> Tensor:
    """A tensor with all its parts, on every rank; all ranks must ask."""
    if not isinstance(tensor, DTensor):
        return tensor
    placements = list(tensor.placements)
    for axis in range(len(placements)):  # one axis after the other, as torch would do and warn of
        placements[axis] = Replicate()
        tensor = tensor.redistribute(placements=placements)
    return tensor.to_local()


def square_of(gradients: Sequence[Tensor]) -> Tensor:
    """This rank's part of the squared norm; what several ranks hold counts once among them."""
    by_copies: dict[float, list[Tensor]] = {}
    for gradient in gradients:
        assert isinstance(gradient, DTensor), "ranks share all parameters or none"
        by_copies.setdefault(_copies(gradient), []).append(gradient.to_local())
    squares = [torch.stack(torch._foreach_norm(parts)).square().sum() / num for num, parts in by_copies.items()]
    return torch.stack(squares).sum()


def scale_and_clip(scale: float, norm: Tensor, limit: float | None, parameters: Iterable[Tensor]) -> None:
    """Multiply gradients by a scale, which gives them this norm, and clip that to the limit: one pass, or none.

    What ranks share is multiplied by its parts, since meshes may differ.
    """
    if limit is None and scale == 1:
        return
    gradients = [local_part(parameter.grad)[0] for parameter in parameters if parameter.grad is not None]
    factor = scale if limit is None else torch.clamp(limit / (norm + CLIP_EPS), max=1.0) * scale
    if gradients:
        torch._foreach_mul_(gradients, factor)


def _copies(tensor: DTensor) -> float:
    """How many ranks hold the same part."""
    axes = [axis for axis, placement in enumerate(tensor.placements) if not placement.is_replicate()]
    return dist.get_world_size() / math.prod(tensor.device_mesh.size(axis) for axis in axes)


@dataclass(frozen=True, slots=True)
class StepSums:
    """What a rank's passes have summed, still on the device; of rows that it shares its own part."""

    by_row: Tensor  # (rows,) nats
    by_source: Tensor  # (sources,) nats
    terms: dict[str, Tensor]  # what else the objective has


@dataclass(frozen=True, slots=True)
class StepFigures:
    """What a step found, over all ranks."""

    norm: float  # of the gradients as the passes left them
    nats: list[float]  # by source
    rows: list[int]  # by source
    loss_tokens: list[int]  # by source
    terms: dict[str, float]
    raised: tuple[bool, ...]
    loss_by_row: NDArray[np.float32]  # mean over a row's loss tokens, of all ranks' rows


def figures_of(
    held: HeldModel,
    gradients: Sequence[Tensor],
    sums: StepSums,
    tokens: NDArray[np.int64],
    counts: NDArray[np.float64],
    flags: Sequence[bool],
    place: tuple[int, int],
) -> tuple[Tensor, StepFigures]:
    """The gradients' norm on the device, and all figures of all ranks, by one call between them.

    `tokens` are the loss tokens of this rank's rows, `counts` rows and loss tokens by source. `place` is this rank's
    number among those that read rows of their own, and how many these are: a row's loss has its place among all rows,
    which is 0 on every rank that does not have it, and the sum of their parts where ranks share it.
    """
    nats, terms, wide = sums.by_source, sums.terms, sums.by_source.dtype
    known = torch.tensor([*counts.flat, *flags], dtype=wide).to(nats.device)
    own = sums.by_row / torch.from_numpy(np.maximum(tokens, 1)).to(nats.device)
    number, readers = place
    all_rows = pad(own, (number * len(own), (readers - 1 - number) * len(own)))
    values = torch.cat((nats, *(term[None].to(wide) for term in terms.values()), known, all_rows))
    norm, summed = held.sum_with_norm(gradients, values)
    sizes = (1, len(nats), len(terms), len(nats), len(nats), len(flags))
    parts = np.split(torch.cat((norm[None].to(wide), summed)).cpu().numpy(), np.cumsum(sizes))
    (first,), of_nats, of_terms, rows, source_tokens, of_flags = (part.tolist() for part in parts[:-1])
    return norm, StepFigures(
        norm=first,
        nats=of_nats,
        rows=list(map(round, rows)),
        loss_tokens=list(map(round, source_tokens)),
        terms=dict(zip(terms, of_terms, strict=True)),
        raised=tuple(flag > 0 for flag in of_flags),
        loss_by_row=parts[-1].astype(np.float32),
    )


def summed_figures(
    held: HeldModel, sources: tuple[str, ...], figures: dict[str, SourceFigures]
) -> dict[str, SourceFigures]:
    """Figures by source, of all ranks' rows."""
    if isinstance(held, ShardedModel):
        table = np.zeros((len(sources), 5))
        for name, part in figures.items():
            table[sources.index(name)] = 1, part.nats, part.tokens, part.bytes or 0, part.text_nats or 0.0
        # Bytes are known on all ranks or on none; a rank without rows of a source has no say in it.
        table = held.sum(table)
        with_bytes = any(part.bytes is not None for part in figures.values())
        figures = {
            name: SourceFigures(nats, round(tokens), *((round(size), of_text) if with_bytes else (None, None)))
            for name, (ranks, nats, tokens, size, of_text) in zip(sources, table.tolist(), strict=True)
            if ranks
        }
    return figures

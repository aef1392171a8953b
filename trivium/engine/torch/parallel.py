"""A decoder on many ranks: matrices split over the tensor axis, everything sharded over the others.

    layers' matrices    heads and feed-forward over `tensor` (columns in, rows out); all of it over `shard`
    all the rest        over `shard` alone; ranks of the tensor axis hold the same
    replicate           copies of that (hybrid sharding)

FSDP gathers a layer before it is used and lets it go after; embedding, last norm and unembedding are gathered for
the whole pass, because the loss uses the unembedding inside the model. Gradients are summed, not averaged: the
objective has been divided by the loss tokens of the whole batch before. In bfloat16 a layer is gathered as
bfloat16, its norms' weights too; sums of gradients are float32.

Between ranks a step adds one sum of loss tokens, one of the gradients' norm and one of the figures.
"""

import math
from collections.abc import Iterable
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_module, distribute_tensor
from torch.distributed.tensor.parallel import ParallelStyle, PrepareModuleInput, parallelize_module
from torch.nn.utils import get_total_norm

from trivium.engine.base import SourceFigures
from trivium.engine.mesh import MeshShape, refuse_uneven_matrices
from trivium.engine.torch.model import LanguageModel
from trivium.engine.torch.ranks import join

CLIP_EPS = 1e-6  # torch's own
REPLICATE, SHARD, TENSOR = "replicate", "shard", "tensor"


class LocalModel:
    """A decoder that one process holds whole, so that there is nobody to ask."""

    rank = 0

    def __init__(self, model: LanguageModel) -> None:
        self.model = model

    def begin_pass(self, *, is_last: bool) -> None:
        """Called before each micro-batch's pass."""

    def end_passes(self) -> None:
        """Called after passes that nothing goes backward from."""

    def sum(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Sum over the ranks that have rows of their own."""
        return values


class ShardedModel:
    """A decoder without storage, shared out to the ranks of a launch: its parameters become DTensors of their mesh."""

    def __init__(self, model: LanguageModel, shape: MeshShape, device: torch.device) -> None:
        self.rank = join().rank
        self.model = model
        self.shape = shape
        self.mesh, self._data = _mesh_and_data_group(shape, device.type)
        self._shard(model)

    def begin_pass(self, *, is_last: bool) -> None:
        """Copies of the model add up their gradients once a step; the ranks of one copy, in every pass."""
        if self.shape.replicate > 1 and isinstance(self.model, FSDPModule):
            self.model.set_requires_all_reduce(is_last)

    def end_passes(self) -> None:
        """Let go what a backward pass would have used: until then the gathered weights pass for the model's own."""
        assert isinstance(self.model, FSDPModule)
        self.model.reshard()

    def sum(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        summed = torch.from_numpy(values.copy())
        dist.all_reduce(summed, group=self._data)
        return summed.numpy()

    def _shard(self, model: LanguageModel) -> None:
        refuse_uneven_matrices(self.shape, model.spec)
        gathered = MixedPrecisionPolicy(param_dtype=model.precision, reduce_dtype=torch.float32)
        if model.precision == torch.float32:
            gathered = MixedPrecisionPolicy()
        data: DeviceMesh = self.mesh[REPLICATE, SHARD] if self.shape.replicate > 1 else self.mesh[SHARD]
        for layer in model.layers:
            if self.shape.tensor > 1:
                parallelize_module(layer, self.mesh[TENSOR], _tensor_plan(model.spec.qk_norm))
            fully_shard(layer, mesh=data, mp_policy=gathered)
        fully_shard(model, mesh=data)
        register_fsdp_forward_method(model, "hidden")  # a reference gives its states, not a loss
        register_fsdp_forward_method(model, "next_logits")
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.set_gradient_divide_factor(1.0)
                module.set_force_sum_reduction_for_comms(True)


HeldModel = LocalModel | ShardedModel


def hold(model: LanguageModel, shape: MeshShape, device: torch.device) -> HeldModel:
    """A decoder without storage as this launch's ranks hold it."""
    return LocalModel(model) if shape.size == 1 else ShardedModel(model, shape, device)


@cache
def _mesh_and_data_group(shape: MeshShape, device_type: str) -> tuple[DeviceMesh, dist.ProcessGroup]:
    """One mesh for all models of a process, and the group of ranks that have rows of their own."""
    sizes, names = (shape.replicate, shape.shard, shape.tensor), (REPLICATE, SHARD, TENSOR)
    mesh = init_device_mesh(device_type, sizes, mesh_dim_names=names)
    return mesh, mesh[REPLICATE, SHARD]._flatten("data").get_group()


class _Shared(ParallelStyle):
    """A module whose weights every rank of the tensor axis holds, and whose gradients are summed over it."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        return distribute_module(module, device_mesh)


class _Split(ParallelStyle):
    """A matrix whose outputs (dimension 0) or inputs (1) are split over the tensor axis."""

    def __init__(self, dimension: int) -> None:
        super().__init__()
        self.dimension = dimension

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        def partition(_name: str, matrix: nn.Module, mesh: DeviceMesh) -> None:
            weight = distribute_tensor(matrix.weight, mesh, [Shard(self.dimension)], src_data_rank=None)  # type: ignore[arg-type]
            matrix.weight = nn.Parameter(weight)

        def taken(_matrix: nn.Module, inputs: tuple[Any, ...], mesh: DeviceMesh) -> Any:
            (vectors,) = inputs
            return DTensor.from_local(vectors, mesh, [Shard(-1)], run_check=False) if self.dimension else vectors

        def given(_matrix: nn.Module, output: Any, mesh: DeviceMesh) -> Any:
            placement = Replicate() if self.dimension else Shard(-1)
            return output.redistribute(mesh, [placement]).to_local()

        return distribute_module(module, device_mesh, partition, taken, given)


def _tensor_plan(qk_norm: bool) -> dict[str, ParallelStyle]:
    """One sum of outputs forward and one of inputs' gradients backward, for attention and feed-forward each."""
    all_of_it = Replicate()
    stream_alone = (all_of_it, None, None)
    plan: dict[str, ParallelStyle] = {
        "attention": PrepareModuleInput(input_layouts=stream_alone, desired_input_layouts=stream_alone),
        "feed_forward": PrepareModuleInput(input_layouts=all_of_it, desired_input_layouts=all_of_it),
        "attention.output": _Split(1),
        "feed_forward.down": _Split(1),
    }
    for name in ("attention.query", "attention.key", "attention.value", "feed_forward.gate", "feed_forward.up"):
        plan[name] = _Split(0)
    for name in ("attention.query_norm", "attention.key_norm") if qk_norm else ():
        plan[name] = _Shared()
    return plan


def local_part(tensor: Tensor) -> tuple[Tensor, tuple[slice, ...]]:
    """What this rank holds of a tensor, and where that lies in the whole one."""
    if not isinstance(tensor, DTensor):
        return tensor, tuple(slice(0, size) for size in tensor.shape)
    (chunk,) = tensor.__create_chunk_list__()  # type: ignore[no-untyped-call]
    where = tuple(slice(start, start + size) for start, size in zip(chunk.offsets, chunk.sizes, strict=True))
    return tensor.to_local(), where


def whole(tensor: Tensor) -> Tensor:
    """A tensor with all its parts, on every rank; all ranks must ask."""
    if not isinstance(tensor, DTensor):
        return tensor
    placements = list(tensor.placements)
    for axis in range(len(placements)):  # one axis after the other, as torch would do and warn of
        placements[axis] = Replicate()
        tensor = tensor.redistribute(placements=placements)
    return tensor.to_local()


def like(parameter: Tensor, tensor: Tensor) -> Tensor:
    """A whole tensor, laid out as a parameter is."""
    if not isinstance(parameter, DTensor):
        return tensor
    _, where = local_part(parameter)
    local = tensor[where].contiguous()
    shape, stride = parameter.shape, parameter.stride()
    mesh, placements = parameter.device_mesh, parameter.placements
    return DTensor.from_local(local, mesh, placements, run_check=False, shape=shape, stride=stride)


def total_norm(gradients: Iterable[Tensor]) -> Tensor:
    """The norm over all parameters and ranks; what several ranks hold is counted once."""
    each = list(gradients)
    shared = [gradient for gradient in each if isinstance(gradient, DTensor)]
    if not shared:
        return get_total_norm(each)
    assert len(shared) == len(each), "ranks share all parameters or none"
    squares = [gradient.to_local().square().sum() / _copies(gradient) for gradient in shared]
    summed = torch.stack(squares).sum()
    dist.all_reduce(summed)
    return summed.sqrt()


def clip_to(limit: float, norm: Tensor, parameters: Iterable[Tensor]) -> None:
    """Scale gradients of this norm down to the limit; what ranks share, each by itself, since meshes may differ."""
    gradients = [local_part(parameter.grad)[0] for parameter in parameters if parameter.grad is not None]
    factor = torch.clamp(limit / (norm + CLIP_EPS), max=1.0)
    for gradient in gradients:
        gradient.mul_(factor)


def _copies(tensor: DTensor) -> float:
    """How many ranks hold the same part."""
    axes = [axis for axis, placement in enumerate(tensor.placements) if not placement.is_replicate()]
    return dist.get_world_size() / math.prod(tensor.device_mesh.size(axis) for axis in axes)


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

"""A decoder -> the same decoder whose modules hold a rank's part of their matrices.

embedding, lm_head             rows of the vocabulary
query, key, value, gate, up    outputs: a rank has its own heads and its own part of the feed-forward
output, down                   inputs: what they give is a summand
biases                         with the outputs that they are added to
norms, activations             whole on every rank, which has gradients from its own slots, heads or part
joint norms of heads           weights of a rank's own heads; the ranks sum their squares
"""

from typing import Any

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_module, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module

from trivium.engine.torch.layers import XIELU, JointNorm, Layer, RMSNorm, Rotation
from trivium.engine.torch.model import Decoder
from trivium.engine.torch.tensor_parallel.axis import TensorAxis


def split_matrices(model: Decoder, mesh: DeviceMesh) -> None:
    """Let a decoder without storage hold this rank's part of its matrices."""
    model.axis = TensorAxis(mesh)
    plan: dict[str, ParallelStyle] = {"embedding": _Rows(), "norm": _Whole()}
    if model.unembedding is not None:
        plan["unembedding"] = _Rows()
    parallelize_module(model, mesh, plan, src_data_rank=None)
    for layer in model.layers:
        assert isinstance(layer, Layer), "a decoder's"
        parallelize_module(layer, mesh, _layer_plan(layer), src_data_rank=None)


def _layer_plan(layer: Layer) -> dict[str, ParallelStyle]:
    """One gather before attention and feed-forward each, and one scatter after it."""
    plan: dict[str, ParallelStyle] = {"attention": _Block(), "feed_forward": _Block()}
    for name, module in layer.named_modules():
        if name in ("attention.output", "feed_forward.down"):
            plan[name] = RowwiseParallel(output_layouts=Partial())
        elif isinstance(module, nn.Linear):
            plan[name] = ColwiseParallel()
        elif isinstance(module, JointNorm):
            plan[name] = _Rows()
        elif isinstance(module, RMSNorm | XIELU):
            plan[name] = _Whole()
    return plan


class _Whole(ParallelStyle):
    """A module whose weights every rank of the tensor axis holds, and whose gradients are summed over it."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        return distribute_module(module, device_mesh)


class _Rows(ParallelStyle):
    """A weight of whose rows each rank of the tensor axis has a part; the module itself knows what to do with it."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        weight: Tensor = module.weight  # type: ignore[assignment]
        module.weight = nn.Parameter(distribute_tensor(weight, device_mesh, [Shard(0)], src_data_rank=None))
        if isinstance(module, JointNorm):
            module.axis = TensorAxis(device_mesh)
        return module


class _Block(ParallelStyle):
    """Attention or feed-forward: takes a part of the slots, computes on all of them, and gives its part of the sums."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        axis = TensorAxis(device_mesh)

        def gathered(_module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
            part, *others = inputs
            slots = next((each.seq_len for each in others if isinstance(each, Rotation)), None)
            everywhere, summands = [Replicate()], [Partial()]
            x = axis.gather(part, slots)
            return DTensor.from_local(x, device_mesh, everywhere, grad_placements=summands), *others

        def scattered(_module: nn.Module, _inputs: tuple[Any, ...], output: Tensor) -> Tensor:
            return axis.scatter(output)

        module.register_forward_pre_hook(gathered)
        module.register_forward_hook(scattered)
        return module

"""One process as any rank of any number, whose tensors have shapes and no values.

torch's fake process group answers every collective at once, and its fake tensors run every operation without
arithmetic and memory. The engine that runs on them is the real one. Two things have to be told apart: a model is
made and shared out on the meta device outside of the fake mode, as meshes are, and a value that is asked of a fake
tensor is 1.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

from trivium.engine.torch.checkpoint.weights import empty_model
from trivium.engine.torch.measure.replace import replaced, replaced_in_engine
from trivium.engine.torch.parallel import _context_mesh, _mesh_and_data_group
from trivium.engine.torch.ranks import TorchRanks, join


@contextmanager
def fake_rank(rank: int, size: int) -> Iterator[None]:
    """Inside, this process is a rank of a launch, and its tensors are fake. It must not be one of a real launch."""
    store = FakeStore()
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    to_empty, numpy = nn.Module.to_empty, Tensor.numpy

    def made(*args: Any, **kwargs: Any) -> Any:
        with unset_fake_temporarily():
            return empty_model(*args, **kwargs)

    def divided(*args: Any) -> Any:
        with unset_fake_temporarily():
            return _context_mesh(*args)

    def with_memory(module: nn.Module, **kwargs: Any) -> nn.Module:
        with mode:
            return to_empty(module, **kwargs)

    def values_of(tensor: Tensor, **kwargs: Any) -> Any:
        if not isinstance(tensor, FakeTensor):
            return numpy(tensor, **kwargs)
        with unset_fake_temporarily():
            return np.ones(tuple(tensor.shape), numpy(torch.empty(0, dtype=tensor.dtype)).dtype)

    if size > 1:
        dist.init_process_group("fake", store=store, rank=rank, world_size=size)
    try:
        with (
            replaced_in_engine(join, lambda: TorchRanks(store, rank, size)),
            replaced_in_engine(empty_model, made),
            replaced_in_engine(_context_mesh, divided),
            replaced(nn.Module, "to_empty", with_memory),
            replaced(Tensor, "numpy", values_of),
            mode,
            _Values(),  # type: ignore[no-untyped-call]
        ):
            yield
    finally:
        _mesh_and_data_group.cache_clear()
        _context_mesh.cache_clear()
        if size > 1:
            dist.destroy_process_group()


class _Values(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A number that is asked of a fake tensor is 1."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # its local part comes here by itself
        if func is torch.ops.aten._local_scalar_dense.default and isinstance(args[0], FakeTensor):
            return 1.0 if args[0].is_floating_point() else 1
        return func(*args, **(kwargs or {}))

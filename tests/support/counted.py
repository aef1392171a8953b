"""What a piece of torch code sends between ranks and the most memory that its new tensors hold at once."""

from collections import Counter
from typing import Any, Self

import torch
from torch.distributed.tensor import DTensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

COLLECTIVES = ("c10d", "_c10d_functional")


class Counted(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts inside a `with`: calls and bytes of collectives by name, and the peak of storages that were made there."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()
        self.peak = 0
        self._alive: dict[int, tuple[Any, int]] = {}

    def __enter__(self) -> Self:
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # so that the operations on parts are seen
        result = func(*args, **(kwargs or {}))
        if func.namespace in COLLECTIVES:
            received = args[0] if func.namespace == "c10d" else result
            self.calls[func._opname] += 1
            self.bytes[func._opname] += sum(map(_size, _tensors(received)))
        given = {tensor.untyped_storage()._cdata for tensor in _tensors((args, kwargs))}
        for tensor in _tensors(result):
            storage = tensor.untyped_storage()
            if storage._cdata not in given:  # neither a view nor changed in place
                self._alive[storage._cdata] = StorageWeakRef(storage), storage.nbytes()  # type: ignore[no-untyped-call]
        self._alive = {key: (weak, size) for key, (weak, size) in self._alive.items() if not weak.expired()}
        self.peak = max(self.peak, sum(size for _, size in self._alive.values()))
        return result


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def _size(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()

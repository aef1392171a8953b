"""Every storage of a step, from its allocation to its end -> the bytes that are held at any time, by kind.

A dispatch mode sees each operation on a rank's own tensors (a DTensor's are the operations on its local part) and notes
new storages; a weak reference tells when one is gone. FSDP frees and refills its buffers by resizing storages, which no
dispatch shows: that method is replaced. What DTensor runs to learn a result's shape allocates nothing, and is left out.

Kinds come from who allocates (FSDP, the loss, the reference, an optimizer) and, for weights, gradients and optimizer
state, from what the tensors are used as. All the rest are activations, forward and backward.
"""

import sys
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, UntypedStorage
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from trivium.engine.memory import Kind
from trivium.engine.torch.measure.replace import replaced

PLAIN = (Tensor, torch.nn.Parameter, FakeTensor)  # any other type is a wrapper, whose parts come here by themselves
SMALL = 2**16  # bytes below which it is not worth finding out who allocates
FSDP, ENGINE = "/torch/distributed/fsdp/", "/trivium/engine/torch/"
IN_ENGINE: dict[str, Kind] = {"loss.py": "loss", "compare.py": "loss", "reference.py": "reference"}


@dataclass(slots=True)
class Held:
    """One storage's bytes between two times; None while it is alive."""

    bytes: int
    born: int
    kind: Kind
    died: int | None = None


class Storages(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts storages while it is the current mode. Times are numbers of allocations and ends so far."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.time = 0
        self.each: list[Held] = []
        self.of_others: Kind = "activations"  # what an allocation is that no file decides
        self._all_are: Kind | None = None
        self._alive: dict[int, tuple[Held, weakref.ref[UntypedStorage]]] = {}
        self._pauses = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not all(issubclass(kind, PLAIN) and not issubclass(kind, DTensor) for kind in types):
            return NotImplemented
        result = func(*args, **(kwargs or {}))
        if not self._pauses:
            self.note(tree_leaves(result))
        return result

    def note(self, values: Iterable[Any]) -> None:
        """Take in storages that are new."""
        for value in values:
            if isinstance(value, Tensor) and value.device.type != "meta":
                storage = value.untyped_storage()
                if storage._cdata not in self._alive and storage.nbytes():
                    self._begin(storage, storage.nbytes())

    def mark(self, tensors: Iterable[Tensor], kind: Kind) -> None:
        """Say what tensors are used as."""
        for tensor in tensors:
            local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
            found = self._alive.get(local.untyped_storage()._cdata)
            if found is not None:
                found[0].kind = kind

    @contextmanager
    def counting(self) -> Iterator["Storages"]:
        """Count inside, resized storages too."""
        resize, propagate = UntypedStorage.resize_, ShardingPropagator._propagate_tensor_meta_non_cached

        def resized(storage: UntypedStorage, size: int) -> Any:
            found = resize(storage, size)
            self._end(storage._cdata)
            if size:
                self._begin(storage, size)
            return found

        def unseen(*args: Any, **kwargs: Any) -> Any:
            with self.paused():
                return propagate(*args, **kwargs)

        with (
            replaced(UntypedStorage, "resize_", resized),
            replaced(ShardingPropagator, "_propagate_tensor_meta_non_cached", unseen),
            self,
        ):
            yield self

    @contextmanager
    def all_are(self, kind: Kind) -> Iterator[None]:
        """Whatever is allocated inside is of one kind."""
        self._all_are = kind
        try:
            yield
        finally:
            self._all_are = None

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Count nothing inside."""
        self._pauses += 1
        try:
            yield
        finally:
            self._pauses -= 1

    def _begin(self, storage: UntypedStorage, size: int) -> None:
        self.time += 1
        held = Held(size, self.time, self._kind(size))
        self.each.append(held)
        key = storage._cdata
        self._alive[key] = held, weakref.ref(storage, lambda _: self._end(key))

    def _end(self, key: int) -> None:
        found = self._alive.pop(key, None)
        if found is not None:
            self.time += 1
            found[0].died = self.time

    def _kind(self, size: int) -> Kind:
        """By the innermost function that is FSDP's or the engine's."""
        if self._all_are is not None:
            return self._all_are
        frame = sys._getframe(1) if size >= SMALL else None
        while frame is not None:
            path = frame.f_code.co_filename
            if FSDP in path:
                return "gathered"
            inside = path.partition(ENGINE)[2]
            if inside and not inside.startswith("measure/"):
                return IN_ENGINE.get(inside, self.of_others)
            frame = frame.f_back
        return self.of_others

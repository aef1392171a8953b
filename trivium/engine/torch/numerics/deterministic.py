"""The same bits each time: torch's operations, cuBLAS and NCCL held to one way of computing.

On a CPU this costs nothing, and is the default. On GPUs operations without atomic additions are slower, and NCCL may
not choose the fastest way for each size and link: there it holds only where the config asks for it.
"""

import threading
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch.utils import deterministic

from trivium.errors import ConfigError, Problem

PINNED = {
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",  # cuBLAS repeats its bits only with this
    # The order in which NCCL adds up depends on how many channels of which algorithm and protocol carry a message.
    "NCCL_ALGO": "Ring",
    "NCCL_PROTO": "Simple",
    "NCCL_NVLS_ENABLE": "0",  # no sums inside the switch
    "NCCL_MIN_NCHANNELS": "16",
    "NCCL_MAX_NCHANNELS": "16",
}


def is_exact(asked: bool | None, device: str) -> bool:
    """Whether a kind of device computes the same bits each time: as the config asks, else everywhere but on GPUs."""
    return device != "cuda" if asked is None else asked


def pin_libraries(environment: MutableMapping[str, str]) -> None:
    """Hold cuBLAS and NCCL to one way of computing; a variable that the user has set otherwise is refused by name."""
    others = {name: environment[name] for name in PINNED if environment.get(name, PINNED[name]) != PINNED[name]}
    if others:
        found = ", ".join(f"{name}={value}" for name, value in others.items())
        wanted = ", ".join(f"{name}={PINNED[name]}" for name in others)
        what = f"is true, which needs {wanted}, but the environment has {found}. Unset that, or leave this out."
        raise ConfigError([Problem("engine.deterministic", what)])
    environment.update(PINNED)


@dataclass(slots=True)
class _Before:
    """How torch was before the first thread came in; the last one out puts it back."""

    inside: int = 0
    exact: bool = False
    filling: bool = True


_before, _lock = _Before(), threading.Lock()


@contextmanager
def deterministic_algorithms(wanted: bool) -> Iterator[None]:
    """Inside, operations whose bits may differ from run to run are replaced or raise; costs nothing on a CPU."""
    if not wanted:
        yield
        return
    with _lock:
        if not _before.inside:
            _before.exact = torch.are_deterministic_algorithms_enabled()
            _before.filling = deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
            torch.use_deterministic_algorithms(True)
            deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # a pass over all memory
        _before.inside += 1
    try:
        yield
    finally:
        with _lock:
            _before.inside -= 1
            if not _before.inside:
                torch.use_deterministic_algorithms(_before.exact)
                deterministic.fill_uninitialized_memory = _before.filling  # type: ignore[attr-defined]

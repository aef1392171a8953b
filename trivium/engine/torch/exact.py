"""Ordinary torch -> torch that gives the same bits each time, for the length of a `with`."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch.utils import deterministic


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
    _enter()
    try:
        yield
    finally:
        _leave()


def _enter() -> None:
    with _lock:
        if not _before.inside:
            _before.exact = torch.are_deterministic_algorithms_enabled()
            _before.filling = deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
            torch.use_deterministic_algorithms(True)
            deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # a pass over all memory
        _before.inside += 1


def _leave() -> None:
    with _lock:
        _before.inside -= 1
        if not _before.inside:
            torch.use_deterministic_algorithms(_before.exact)
            deterministic.fill_uninitialized_memory = _before.filling  # type: ignore[attr-defined]

"""Ordinary torch -> torch that gives the same bits each time, for the length of a `with`."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.utils import deterministic


@contextmanager
def exactly(wanted: bool) -> Iterator[None]:
    """Inside, operations whose bits may differ from run to run are replaced or raise; costs nothing on a CPU."""
    if not wanted:
        yield
        return
    was_exact, was_filling = torch.are_deterministic_algorithms_enabled(), deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    torch.use_deterministic_algorithms(True)
    deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # one more pass over all memory
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(was_exact)
        deterministic.fill_uninitialized_memory = was_filling  # type: ignore[attr-defined]

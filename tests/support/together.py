"""Ranks that are threads of one process: the same calls as between processes, in milliseconds."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from trivium.engine.ranks import Ranks, Value, decode_message, encode_message

Result = TypeVar("Result")


class _Table:
    """What every rank has put down, and who is still to come."""

    def __init__(self, size: int) -> None:
        self.messages: list[bytes] = [b""] * size
        self.barrier = threading.Barrier(size, timeout=60)


class Together(Ranks):
    """One of several threads; messages go through JSON, as they do between processes."""

    def __init__(self, rank: int, size: int, table: _Table) -> None:
        self.rank = rank
        self.size = size
        self._table = table

    def agree(self, *flags: bool) -> tuple[bool, ...]:
        raised = self.gather(list(flags))
        return tuple(any(each) for each in zip(*raised, strict=True))

    def meet(self) -> None:
        self._table.barrier.wait()

    def gather(self, value: Value) -> list[Value]:
        self._table.messages[self.rank] = encode_message(value)
        self.meet()
        found: list[Any] = [decode_message(message) for message in self._table.messages]
        self.meet()
        return found

    def share(self, value: Value) -> Value:
        return self.gather(value if self.is_main else None)[0]  # type: ignore[return-value]


def together(size: int, act: Callable[[Ranks], Result]) -> list[Result]:
    """What each of several ranks gives, in their order; the first that raises is raised."""
    table = _Table(size)
    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(act, (Together(rank, size, table) for rank in range(size))))

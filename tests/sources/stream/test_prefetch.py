"""Threads that read ahead, and readers that wait for a remote."""

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from queue import Empty

import pytest

from trivium.errors import SourceError
from trivium.sources.stream.prefetch import Prefetcher, Retries, read_with_retries


@dataclass(frozen=True)
class Number:
    value: int

    @property
    def after(self) -> int:
        return self.value + 1


def numbers(start: int, stop: int = 6) -> Iterator[Number]:
    return (Number(value) for value in range(start, stop))


def test_items_come_in_order_and_then_the_end_again_and_again() -> None:
    ahead = Prefetcher(range(5))
    assert [ahead.get() for _ in range(5)] == [0, 1, 2, 3, 4]
    for _ in range(2):
        with pytest.raises(StopIteration):
            ahead.get()


def test_an_error_comes_up_where_items_are_taken() -> None:
    def failing() -> Iterator[int]:
        yield 1
        raise OSError("gone")

    ahead = Prefetcher(failing())
    assert ahead.get() == 1
    with pytest.raises(OSError, match="gone"):
        ahead.get()


def test_nothing_in_time_is_empty() -> None:
    waits = threading.Event()
    ahead = Prefetcher(iter(waits.wait, True))
    with pytest.raises(Empty):
        ahead.get(timeout=0.05)
    waits.set()


def test_a_reader_that_is_closed_or_let_go_leaves_no_thread_behind() -> None:
    before = set(threading.enumerate())  # of earlier tests some may end meanwhile
    closed, let_go = Prefetcher(iter(int, 1)), Prefetcher(iter(int, 1))
    closed.get()
    closed.close()
    del let_go
    until = time.monotonic() + 60
    while set(threading.enumerate()) - before and time.monotonic() < until:
        time.sleep(0.01)
    assert not set(threading.enumerate()) - before


def test_after_a_failure_it_resumes_behind_the_last_item_with_growing_pauses() -> None:
    starts: list[int] = []
    pauses: list[float] = []
    logged: list[str] = []

    def read(start: int) -> Iterator[Number]:
        starts.append(start)
        yield from numbers(start, 3)
        if len(starts) < 4:
            raise ConnectionError("reset by peer")
        yield from numbers(max(start, 3))

    retries = Retries((1, 2, 4), sleep=pauses.append)
    assert [item.value for item in read_with_retries(read, 0, retries, logged.append)] == [0, 1, 2, 3, 4, 5]
    assert starts == [0, 3, 3, 3]
    assert pauses == [1, 2, 4]
    assert logged[0] == "failed with ConnectionError: reset by peer; retries in 1 s"


def test_progress_makes_patient_again() -> None:
    pauses: list[float] = []

    def read(start: int) -> Iterator[Number]:
        yield Number(start)
        if start < 5:
            raise ConnectionError

    items = read_with_retries(read, 0, Retries((1, 2), sleep=pauses.append), lambda text: None)
    assert [item.value for item in items] == [0, 1, 2, 3, 4, 5]
    assert pauses == [1] * 5


def test_too_many_failures_in_a_row_are_an_error_with_the_last_reason() -> None:
    pauses: list[float] = []

    def read(start: int) -> Iterator[Number]:
        yield from numbers(start, 2)
        raise ConnectionError("no route")

    items = read_with_retries(read, 0, Retries((1, 2), sleep=pauses.append), lambda text: None)
    assert [next(items).value for _ in range(2)] == [0, 1]
    with pytest.raises(SourceError) as error:
        next(items)
    assert str(error.value) == "failed 3 times in a row, the last time with ConnectionError: no route"
    assert pauses == [1, 2]


def test_a_stall_is_a_failure() -> None:
    stalled = threading.Event()

    def read(start: int) -> Iterator[Number]:
        yield from numbers(start, 2)
        if start == 0:
            stalled.wait()
        yield from numbers(max(start, 2))

    logged: list[str] = []
    retries = Retries((0,), stall_seconds=0.2)
    assert [item.value for item in read_with_retries(read, 0, retries, logged.append)] == [0, 1, 2, 3, 4, 5]
    assert logged == ["failed with TimeoutError: nothing came for 0.2 s; retries in 0 s"]
    stalled.set()


def test_what_no_second_try_would_fix_is_not_tried_again() -> None:
    def read(start: int) -> Iterator[Number]:
        yield Number(start)
        raise SourceError("no such column")

    with pytest.raises(SourceError, match="no such column"):
        list(read_with_retries(read, 0, Retries((1,), sleep=lambda pause: pytest.fail("it paused")), lambda text: None))

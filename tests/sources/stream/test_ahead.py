"""Threads that read ahead, and readers that wait for a remote."""

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from queue import Empty

import pytest

from trivium.errors import SourceError
from trivium.sources.stream.ahead import Ahead, Patience, patiently


@dataclass(frozen=True)
class Number:
    value: int

    @property
    def after(self) -> int:
        return self.value + 1


def numbers(place: int, stop: int = 6) -> Iterator[Number]:
    return (Number(value) for value in range(place, stop))


def test_items_come_in_order_and_then_the_end_again_and_again() -> None:
    ahead = Ahead(range(5))
    assert [ahead.get() for _ in range(5)] == [0, 1, 2, 3, 4]
    for _ in range(2):
        with pytest.raises(StopIteration):
            ahead.get()


def test_an_error_comes_up_where_items_are_taken() -> None:
    def failing() -> Iterator[int]:
        yield 1
        raise OSError("gone")

    ahead = Ahead(failing())
    assert ahead.get() == 1
    with pytest.raises(OSError, match="gone"):
        ahead.get()


def test_nothing_in_time_is_empty() -> None:
    waits = threading.Event()
    ahead = Ahead(iter(waits.wait, True))
    with pytest.raises(Empty):
        ahead.get(timeout=0.05)
    waits.set()


def test_a_reader_that_is_closed_or_let_go_leaves_no_thread_behind() -> None:
    before = set(threading.enumerate())  # of earlier tests some may end meanwhile
    closed, let_go = Ahead(iter(int, 1)), Ahead(iter(int, 1))
    closed.get()
    closed.close()
    del let_go
    until = time.monotonic() + 60
    while set(threading.enumerate()) - before and time.monotonic() < until:
        time.sleep(0.01)
    assert not set(threading.enumerate()) - before


def test_after_a_failure_it_reads_on_from_the_last_place_with_growing_pauses() -> None:
    places: list[int] = []
    pauses: list[float] = []
    said: list[str] = []

    def read(place: int) -> Iterator[Number]:
        places.append(place)
        yield from numbers(place, 3)
        if len(places) < 4:
            raise ConnectionError("reset by peer")
        yield from numbers(max(place, 3))

    patience = Patience((1, 2, 4), sleep=pauses.append)
    assert [item.value for item in patiently(read, 0, patience, said.append)] == [0, 1, 2, 3, 4, 5]
    assert places == [0, 3, 3, 3]
    assert pauses == [1, 2, 4]
    assert said[0] == "failed with ConnectionError: reset by peer; reads on in 1 s"


def test_progress_makes_patient_again() -> None:
    pauses: list[float] = []

    def read(place: int) -> Iterator[Number]:
        yield Number(place)
        if place < 5:
            raise ConnectionError

    items = patiently(read, 0, Patience((1, 2), sleep=pauses.append), lambda text: None)
    assert [item.value for item in items] == [0, 1, 2, 3, 4, 5]
    assert pauses == [1] * 5


def test_too_many_failures_in_a_row_are_an_error_with_the_last_reason() -> None:
    pauses: list[float] = []

    def read(place: int) -> Iterator[Number]:
        yield from numbers(place, 2)
        raise ConnectionError("no route")

    items = patiently(read, 0, Patience((1, 2), sleep=pauses.append), lambda text: None)
    assert [next(items).value for _ in range(2)] == [0, 1]
    with pytest.raises(SourceError) as error:
        next(items)
    assert str(error.value) == "failed 3 times in a row, the last time with ConnectionError: no route"
    assert pauses == [1, 2]


def test_a_stall_is_a_failure() -> None:
    stalled = threading.Event()

    def read(place: int) -> Iterator[Number]:
        yield from numbers(place, 2)
        if place == 0:
            stalled.wait()
        yield from numbers(max(place, 2))

    said: list[str] = []
    patience = Patience((0,), stall_seconds=0.2)
    assert [item.value for item in patiently(read, 0, patience, said.append)] == [0, 1, 2, 3, 4, 5]
    assert said == ["failed with TimeoutError: nothing came for 0.2 s; reads on in 0 s"]
    stalled.set()


def test_what_no_second_try_would_mend_is_not_tried_again() -> None:
    def read(place: int) -> Iterator[Number]:
        yield Number(place)
        raise SourceError("no such column")

    with pytest.raises(SourceError, match="no such column"):
        list(patiently(read, 0, Patience((1,), sleep=lambda pause: pytest.fail("it paused")), lambda text: None))

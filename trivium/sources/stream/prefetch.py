"""An iterator that runs in a thread, some items ahead; and one that waits for a remote that fails or stalls.

`Prefetcher` is the thread: what the iterator raises comes up where its items are taken. `read_with_retries` reads
in such a thread; after a failure, or when nothing came for too long, it pauses and resumes behind the last item that
it gave, each pause twice as long as the one before.
"""

import atexit
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from queue import Empty, Queue
from typing import Any, Generic, Protocol, TypeVar

from trivium.config.redact import redact
from trivium.errors import SourceError

Item = TypeVar("Item")
EXIT_SECONDS = 5.0  # the longest wait for threads when the process ends


class Prefetcher(Generic[Item]):
    """An iterator in a thread of its own, at most `depth` items and one more ahead."""

    def __init__(self, items: Iterable[Item], depth: int = 1) -> None:
        self._queue: Queue[Item | _End] = Queue(depth)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=_run, args=(items, self._queue, self._closed), daemon=True)
        # The thread knows the queue and the mark only, so that it ends once nobody takes its items any more.
        weakref.finalize(self, _close, self._queue, self._closed).atexit = False
        _ALIVE.add(self)
        self._thread.start()

    def get(self, timeout: float | None = None) -> Item:
        """The next item; StopIteration at the end, `queue.Empty` where none came in time."""
        item = self._queue.get(timeout=timeout)
        if isinstance(item, _End):
            self._queue.put(item)  # a second call gets the same answer
            raise StopIteration if item.error is None else item.error
        return item

    def close(self) -> None:
        """Let the thread end after the item that it is at."""
        _close(self._queue, self._closed)

    def join(self, timeout: float) -> None:
        """Wait for the thread, but not for ever."""
        self._thread.join(timeout)


@dataclass(frozen=True, slots=True)
class _End:
    error: Exception | None


_ALIVE: "weakref.WeakSet[Prefetcher[Any]]" = weakref.WeakSet()


def _run(items: Iterable[Item], queue: "Queue[Item | _End]", closed: threading.Event) -> None:
    error: Exception | None = None
    try:
        for item in items:
            queue.put(item)
            if closed.is_set():
                return
    except Exception as reason:
        error = reason
    finally:
        if isinstance(items, Iterator) and hasattr(items, "close"):
            items.close()
    queue.put(_End(error))


def _close(queue: "Queue[Item | _End]", closed: threading.Event) -> None:
    closed.set()
    while True:  # a thread that waits to put an item can put it, and sees the mark
        try:
            queue.get_nowait()
        except Empty:
            return


@atexit.register
def _close_all() -> None:
    """A thread inside a library must not meet the end of the interpreter."""
    alive, until = list(_ALIVE), time.monotonic() + EXIT_SECONDS
    for each in alive:
        each.close()
    for each in alive:
        each.join(max(0.0, until - time.monotonic()))


@dataclass(frozen=True, slots=True)
class Retries:
    """How a remote that fails is asked again: the pauses after failures in a row, and what counts as a stall."""

    pauses: tuple[float, ...] = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
    stall_seconds: float = 120.0
    sleep: Callable[[float], object] = time.sleep


class Resumable(Protocol):
    """An item that knows where reading resumes behind it."""

    @property
    def after(self) -> Any:
        """What `read` takes to give the items that follow."""


ResumableItem = TypeVar("ResumableItem", bound=Resumable)


def read_with_retries(
    read: Callable[[Any], Iterable[ResumableItem]],
    start: Any,
    retries: Retries,
    log: Callable[[str], None],
    refuse: Callable[[Exception], None] = lambda error: None,
) -> Iterator[ResumableItem]:
    """The items of `read(start)`; after a failure those behind the last item, until every pause failed in a row.

    `refuse` is asked after each failure, and raises a SourceError where no second try would succeed.
    """
    failures = 0
    while True:
        ahead = Prefetcher(read(start), depth=2)
        try:
            while True:
                item = _next_item(ahead, retries)
                if item is None:
                    return
                start, failures = item.after, 0
                yield item
        except SourceError:
            raise  # what no second try would fix
        except Exception as error:
            refuse(error)
            reason = described(error)
            if failures == len(retries.pauses):
                tries = f"failed {failures + 1} times in a row"
                raise SourceError(f"{tries}, the last time with {reason}") from error
        finally:
            ahead.close()
        pause = retries.pauses[failures]
        failures += 1
        log(f"failed with {reason}; retries in {pause:g} s")
        retries.sleep(pause)


def _next_item(ahead: Prefetcher[ResumableItem], retries: Retries) -> ResumableItem | None:
    try:
        return ahead.get(timeout=retries.stall_seconds)
    except StopIteration:
        return None
    except Empty:
        raise TimeoutError(f"nothing came for {retries.stall_seconds:g} s") from None


def described(error: BaseException) -> str:
    """`ConnectionError: the server did not answer`, in one line."""
    text = redact(" ".join(str(error).split()))
    return f"{type(error).__name__}: {text}" if text else type(error).__name__

"""Small messages between the processes of one run; no framework.

    ranks.agree(stopping)       whether any rank is stopping
    ranks.gather(seconds)       every rank's, in their order
    ranks.share(path)           rank 0's
    ranks.meet()                when all have come here
    with ranks.as_one(): ...    an error that a user can fix ends all ranks, and is reported once

A run of one process has `Ranks()`, which does nothing at no cost; an engine's framework brings its own for many.
Every rank must make the same calls in the same order. Values are plain and travel as JSON: whoever reaches a port of
the launch can send a wrong number, and no code.
"""

import json
import logging
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, NoReturn, TypeVar

from trivium.errors import STOPPED, RankError, SilentRankError, TriviumError, exit_code
from trivium.files import parse_json

END_SECONDS = 30.0  # that a process has to close its files once a rank has failed
Value = TypeVar("Value", bound=bool | int | float | str | list[Any] | dict[str, Any] | None)


class Ranks:
    """One process by itself."""

    rank = 0
    size = 1
    local_devices = 1  # that each rank has

    @property
    def is_main(self) -> bool:
        """Whether this is the rank that writes events, checkpoints' state and to the terminal."""
        return self.rank == 0

    def agree(self, *flags: bool) -> tuple[bool, ...]:
        """For each flag, whether any rank has raised it."""
        return flags

    def meet(self) -> None:
        """Return when every rank has come here."""

    def gather(self, value: Value) -> list[Value]:
        """Every rank's value."""
        return [value]

    def share(self, value: Value) -> Value:
        """Rank 0's value."""
        return value

    def limit_waits(self, minutes: float) -> None:
        """From now on fail where a rank is this late for what devices compute together; small messages may wait."""

    def recorded(self) -> str | None:
        """The last exchanges of this rank, as JSON: which it has begun, and with whom; None where none are recorded."""
        return None

    @contextmanager
    def as_one(self) -> Iterator[None]:
        """All ranks come through the block, or none does; rank 0 raises a TriviumError, the others a silent one."""
        own: TriviumError | None = None
        try:
            yield
        except TriviumError as error:
            own = error
        told = self.gather(None if own is None else [exit_code(own), str(own)])
        failed = {rank: each for rank, each in enumerate(told) if each is not None}
        if not failed:
            return
        first = min(failed)
        message = f"rank {first}: {failed[first][1]}"
        stopped = all(code == STOPPED for code, _ in failed.values())
        if not self.is_main:
            raise SilentRankError(message, stopped=stopped)
        raise own or RankError(message, stopped=stopped)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """A rank that fails inside sends its error to the others, which raise that and not a lost connection."""
        yield

    def failed(self, error: BaseException) -> None:
        """Called where this rank fails, before it closes anything: it ends soon, whatever it waits for by then."""


def end_process(code: int) -> NoReturn:
    """End now, with what was printed; threads and process groups may wait for ranks that never come."""
    end_within(END_SECONDS, code)  # nobody may read what is flushed
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    logging.shutdown()
    os._exit(code)


def end_within(seconds: float, code: int, last_words: str = "") -> None:
    """End the process after this time, unless it has ended by then."""

    def end() -> None:
        time.sleep(seconds)
        os.write(2, last_words.encode())
        os._exit(code)

    threading.Thread(target=end, name="trivium-end", daemon=True).start()


def encode_message(value: Value) -> bytes:
    """A value as other ranks get it."""
    assert _is_plain(value), f"JSON would change {value!r}"
    return json.dumps(value).encode()


def decode_message(message: bytes) -> Any:
    """What another rank has encoded."""
    return parse_json(message)


def _is_plain(value: object) -> bool:
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_plain(each) for key, each in value.items())
    if isinstance(value, list):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, bool | int | float | str)


def launched_ranks() -> int:
    """Processes that the launcher started: torchrun's, or those of a Slurm step; 1 without one."""
    return int(os.environ.get("WORLD_SIZE") or os.environ.get("SLURM_STEP_NUM_TASKS") or 1)

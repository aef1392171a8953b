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
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from trivium.errors import RankError, SilentRankError, TriviumError
from trivium.files import parse_json

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

    @contextmanager
    def as_one(self) -> Iterator[None]:
        """All ranks come through the block, or none does; rank 0 raises a TriviumError, the others a silent one."""
        own: TriviumError | None = None
        try:
            yield
        except TriviumError as error:
            own = error
        errors = self.gather(None if own is None else str(own))
        first = next((rank for rank, text in enumerate(errors) if text is not None), None)
        if first is None:
            return
        if not self.is_main:
            raise SilentRankError(f"rank {first}: {errors[first]}")
        raise own or RankError(f"rank {first}: {errors[first]}")

    @contextmanager
    def watched(self) -> Iterator[None]:
        """A rank that fails inside sends its error to the others, which raise that and not a lost connection."""
        yield


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

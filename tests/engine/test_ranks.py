"""What ranks send one another: plain values, never code."""

import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from trivium.engine.ranks import Ranks, decode_message, encode_message
from trivium.errors import RankError, SilentRankError, SourceError, StoppedError, TriviumError, exit_code

PACKAGE = Path(__file__).parents[2] / "trivium"


def test_messages_are_plain_values_and_come_back_as_they_were() -> None:
    value = {"step": 4, "loss": 1 / 3, "name": "ö", "none": None, "rows": [[1, 2], []], "is_main": True}
    assert decode_message(encode_message(value)) == value
    assert math.isnan(decode_message(encode_message(math.nan)))


def test_what_json_would_change_is_a_bug() -> None:
    changed: list[Any] = [(1, 2), {1: True}, [(1,)], Path("a")]
    for value in changed:
        with pytest.raises(AssertionError, match="JSON would change"):
            encode_message(value)


def test_no_rank_unpickles_what_another_sent() -> None:
    pickles = re.compile(r"\b(import pickle|cloudpickle|\w+_object_list|\w*gather_object)\b")
    found = [path.name for path in PACKAGE.rglob("*.py") if pickles.search(path.read_text())]
    assert found == []


class OneOfTwo(Ranks):
    """A rank beside another that has failed, or not."""

    size = 2

    def __init__(self, rank: int, other: TriviumError | None) -> None:
        self.rank = rank
        self.other = None if other is None else [exit_code(other), str(other)]

    def gather(self, value: Any) -> list[Any]:
        return [value, self.other] if self.rank == 0 else [self.other, value]


@contextmanager
def failing(error: TriviumError | None) -> Iterator[None]:
    yield
    if error is not None:
        raise error


STOP, FAULT = StoppedError("stopped"), SourceError("damaged")


@pytest.mark.parametrize(
    ("rank", "own", "other", "code", "message"),
    [
        (0, STOP, STOP, 3, "stopped"),
        (0, None, STOP, 3, "rank 1: stopped"),
        (1, None, STOP, 3, "rank 0: stopped"),
        (1, STOP, STOP, 3, "rank 0: stopped"),
        (1, STOP, FAULT, 2, "rank 0: damaged"),
        (0, None, FAULT, 2, "rank 1: damaged"),
    ],
)
def test_ranks_end_as_one_with_one_exit_code(
    rank: int, own: TriviumError | None, other: TriviumError, code: int, message: str
) -> None:
    ranks = OneOfTwo(rank, other)
    with pytest.raises(TriviumError) as caught, ranks.as_one(), failing(own):
        pass
    assert (exit_code(caught.value), str(caught.value)) == (code, message)
    assert isinstance(caught.value, SilentRankError) == (rank == 1)
    assert isinstance(caught.value, RankError) == (rank == 1 or own is None)

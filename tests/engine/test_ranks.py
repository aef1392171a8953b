"""What ranks send one another: plain values, never code."""

import math
import re
from pathlib import Path
from typing import Any

import pytest

from trivium.engine.ranks import decode_message, encode_message

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

"""Limits of what a config may hold, whoever wrote it: its size, how deep its tables are, and what its values are."""

from pathlib import Path
from typing import Any

from trivium.config.keys import Path as KeyPath
from trivium.config.keys import show_path
from trivium.files import read_bounded

LARGEST_CONFIG = 16 << 20  # bytes
# Far beyond any config; aliases that hold themselves, or each other many times over, end here.
DEEPEST = 50
MOST_VALUES = 1_000_000


def read_config_text(path: Path) -> str:
    """A config's text, with or without a byte order mark; OSError or ValueError with the reason why there is none."""
    try:
        content = read_bounded(path, LARGEST_CONFIG)
    except ValueError as reason:
        raise ValueError(f"cannot be read: {reason}. Give the path of a config.") from None
    return content.decode("utf-8-sig")


def refuse_beyond_limits(tables: dict[str, Any]) -> None:
    """ValueError with the first key that is nested too deep, or whose value nothing can use."""
    waiting: list[tuple[KeyPath, Any]] = [((), tables)]
    while waiting:
        path, value = waiting.pop()
        if len(path) > DEEPEST:
            raise ValueError(f"is nested more than {DEEPEST} levels deep in {show_path(path[:3])}. Write it flat.")
        if isinstance(value, dict):
            waiting += [((*path, key), inner) for key, inner in value.items()]
            value = next((key for key in value if "\0" in key), None)
        elif isinstance(value, list):
            waiting += [((*path, number), inner) for number, inner in enumerate(value)]
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise ValueError(f"{show_path(path)} is a whole number beyond 64 bits. Write a smaller one.")
        if isinstance(value, str) and "\0" in value:
            raise ValueError(f"has a NUL character in {show_path(path) or 'a key'}. Take it out.")

"""Values that were taken in rounds -> lines of a table: the median, the lowest to the highest, and a target."""

import statistics
from collections.abc import Sequence
from typing import TypeVar

Item = TypeVar("Item")


def in_turn(each: Sequence[Item], turn: int) -> list[Item]:
    """Forwards in even rounds, backwards in odd ones."""
    return list(each if turn % 2 == 0 else reversed(each))


def shown(values: Sequence[float], form: str = ".2f") -> tuple[str, str]:
    """The median, and the lowest to the highest."""
    return f"{statistics.median(values):{form}}", f"{min(values):{form}} to {max(values):{form}}"


def ratios(values: Sequence[float], others: Sequence[float]) -> list[float]:
    """Of what was taken in the same rounds."""
    return [value / other for value, other in zip(values, others, strict=True)]


def title(text: str) -> None:
    """Of a part of the table."""
    print(f"\n{text}")


def print_columns(name: str, columns: tuple[str, str, str]) -> None:
    """Wide enough for the longest name."""
    print(f"{name:<42}" + "".join(f"{column:>20}" for column in columns), flush=True)


def line(name: str, values: Sequence[float], form: str, target: str = "") -> None:
    """A line of the table."""
    print_columns(f"  {name}", (*shown(values, form), target))

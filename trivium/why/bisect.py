"""The documents behind a spike: the fewest of a step's documents without which it does not spike, by halving.

Leaving more documents out never brings a spike back: that is what the search takes for granted. With all of them left
out the spike must be gone. Then it looks for the shortest beginning of the list without which it is gone, by halving;
the last document of that is behind it. Where it is not behind it alone, the search goes on with what is before it, and
leaves out what it has found. One document of n takes log2(n) + 2 reruns, each further one log2(n) + 1.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, log2
from typing import TypeVar

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Document:
    """A document by its source and its number."""

    source: str
    number: int

    def __str__(self) -> str:
        return f"{self.source}:{self.number}"


def reruns_needed(documents: int) -> tuple[int, int]:
    """At the most, to find one document behind a spike, and for each further one."""
    halvings = ceil(log2(max(1, documents)))
    return halvings + 2, halvings + 1


def behind(items: Sequence[Item], is_gone: Callable[[Sequence[Item]], bool]) -> list[Item] | None:
    """The items without which it is gone, the fewest that do; None where it stays without all of them."""
    left = list(items)
    if not is_gone(left):
        return None
    found: list[Item] = []
    while not found or not is_gone(found):
        stays, gone = 0, len(left)  # without this many of the first it stays, and is gone
        while gone - stays > 1:
            middle = (stays + gone) // 2
            if is_gone([*found, *left[:middle]]):
                gone = middle
            else:
                stays = middle
        found.append(left[gone - 1])
        left = left[: gone - 1]
    return found

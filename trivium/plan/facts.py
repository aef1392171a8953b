"""What is on disk of a source, as far as a plan needs to know."""

from collections.abc import Mapping
from typing import Protocol

from trivium.config.sources import Source


class Facts(Protocol):
    """The size of a source that can be read."""

    @property
    def documents(self) -> int:
        """Documents to train on, those held out not counted."""

    @property
    def tokens(self) -> int:
        """Their tokens."""

    @property
    def fingerprint(self) -> str:
        """A hash of its content and of all that decides the order in which it is read."""

    def rows(self, seq_len: int, packing: str) -> int:
        """Rows that it fills once, at a row length and packing."""


def measure(sources: Mapping[str, Source]) -> dict[str, Facts]:
    """The facts of every source that is on disk; a source that is not there is left out."""
    return {}

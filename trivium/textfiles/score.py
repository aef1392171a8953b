"""Documents by a number that their files hold: those of a range stay, the others are left out as they are read.

A document without such a number is a bad line: nobody knows whether it belongs to the range.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trivium.textfiles.read import InputRecords

OUTSIDE = "with a score outside the range"


@dataclass(frozen=True, slots=True)
class ScoreRange:
    """The column of the scores, and which of them stay; plain values."""

    column: str
    at_least: float | None = None
    below: float | None = None

    @property
    def content(self) -> list[Any]:
        """What changes with the documents that stay."""
        return ["score", self.column, self.at_least, self.below]

    def reason(self, score: Any) -> str | None:
        """Why a document with this score is left out; None where it stays."""
        if type(score) not in (int, float) or score != score:
            return f'no number in "{self.column}"'
        is_low = self.at_least is not None and score < self.at_least
        return OUTSIDE if is_low or (self.below is not None and score >= self.below) else None

    def leave_out(self, found: "InputRecords", first: int, scores: Sequence[Any]) -> None:
        """Move records whose score is not in the range to the bad ones; `scores` are of all rows after `first`."""
        kept = []
        for number, record in zip(found.numbers, found.records, strict=True):
            reason = self.reason(scores[number - first - 1])
            if reason is None:
                kept.append((number, record))
            else:
                found.bad.append((number, reason))
        found.numbers, found.records = [number for number, _ in kept], [record for _, record in kept]

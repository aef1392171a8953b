"""Lines that hold no document: counted by reason, the first few of each shown with file and line."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from trivium.errors import SourceError
from trivium.textfiles.read import ABSENT, BINARY, EMPTY, InputLine
from trivium.textfiles.score import OUTSIDE

MOST_BAD = 0.001  # of all lines
FEW = 3  # shown of each reason
MOST_REASONS, OTHER = 50, "wrong in another way"
# Skipped without counting against the limit: nothing is wrong with them.
HARMLESS = (EMPTY, BINARY, OUTSIDE)


@dataclass(slots=True)
class BadLines:
    """How many of each reason, and where the first ones are."""

    counts: dict[str, int] = field(default_factory=dict)
    places: dict[str, list[InputLine]] = field(default_factory=dict)

    @staticmethod
    def from_json(plain: dict[str, Any]) -> "BadLines":
        """Those of which `asdict` was written as JSON."""
        places = {reason: [InputLine(*place) for place in each] for reason, each in plain["places"].items()}
        return BadLines(dict(plain["counts"]), places)

    def add(self, reason: str, place: InputLine) -> None:
        """Count a line, and keep its place if it is one of the first."""
        reason = self._counted_as(reason)
        self.counts[reason] = self.counts.get(reason, 0) + 1
        places = self.places.setdefault(reason, [])
        if len(places) < FEW:
            places.append(place)

    def join(self, other: "BadLines") -> None:
        """Add the counts and places of the input that comes after."""
        for theirs, count in other.counts.items():
            reason = self._counted_as(theirs)
            self.counts[reason] = self.counts.get(reason, 0) + count
            self.places[reason] = [*self.places.get(reason, []), *other.places[theirs]][:FEW]

    def _counted_as(self, reason: str) -> str:
        """The reason itself, or OTHER when there are many already: some reasons quote their line."""
        return reason if reason in self.counts or len(self.counts) < MOST_REASONS else OTHER

    @property
    def harmful(self) -> int:
        """The number of lines that count against the limit."""
        return sum(count for reason, count in self.counts.items() if reason not in HARMLESS)

    def lines(self) -> Iterator[str]:
        """For people: `2 broken JSON: web.jsonl line 17, web.jsonl line 90`."""
        for reason, count in sorted(self.counts.items()):
            places = self.places[reason]
            more = f" and {count - len(places):,} more" if count > len(places) else ""
            yield f"{count:,} {reason}: {', '.join(map(str, places))}{more}"


def too_many(bad: BadLines, lines: int, most_bad: float, title: str) -> SourceError:
    """The error for more bad lines than allowed; where no line has the column, only that is said."""
    absent = [ABSENT.fullmatch(reason) for reason in bad.counts]
    if absent[0] and all(absent) and bad.harmful == lines:
        return _no_column(absent[0], bad, lines, title)
    share = bad.harmful / max(1, lines)
    allow = next(limit for limit in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0) if limit >= share)
    listed = "".join(f"\n  {line}" for line in bad.lines())
    return SourceError(
        f"{title}: {bad.harmful:,} of {lines:,} lines hold no document, {share:.2%}: over the limit of {most_bad:g}. "
        f"Fix them, or allow {allow:g} with --bad-lines, or with bad_lines in the source.{listed}"
    )


def _no_column(absent: re.Match[str], bad: BadLines, lines: int, title: str) -> SourceError:
    column, names = absent.groups()
    first, *others = names.split(", ")
    another = ", or another" if others else ""
    return SourceError(
        f'{title}: none of {lines:,} lines has the column "{column}": {bad.places[absent.string][0]} has {names}. '
        f'Write column = "{first}" in the source, or --column {first}{another}.'
    )

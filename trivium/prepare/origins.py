"""Which line of which input file each prepared document was: a file beside every token file, written by prepare.

Documents of neighbouring lines are a run, and only runs are written. A folder that was prepared without these files
works as one with them; where its documents came from is then not known.
"""

import json
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from trivium.files import draft, read_json
from trivium.textfiles.read import InputLine

ENDING = ".origins.json"
LARGEST = 1 << 30  # bytes; a blank line after each document makes a run of each


@dataclass(slots=True)
class Origins:
    """The lines of a token file's documents, in order."""

    parts: list[InputLine] = field(default_factory=list)  # the first line of each part that has documents
    firsts: list[int] = field(default_factory=list)  # of each run: its first document
    of_part: list[int] = field(default_factory=list)  # its part
    lines: list[int] = field(default_factory=list)  # the line of its first document, as its part counts
    documents: int = 0

    def add(self, first: InputLine, numbers: Sequence[int]) -> None:
        """Add documents of one part by the numbers of their lines; `first` is the part's line 1."""
        if not self.parts or self.parts[-1] != first:
            self.parts.append(first)
        lines = np.asarray(numbers, np.int64) + first.line - 1
        begins = np.flatnonzero(np.diff(lines, prepend=-1) != 1)
        self.firsts += (begins + self.documents).tolist()
        self.of_part += [len(self.parts) - 1] * len(begins)
        self.lines += lines[begins].tolist()
        self.documents += len(lines)

    def line_of(self, document: int) -> InputLine:
        """The line of a document, by its number in the token file."""
        run = bisect_right(self.firsts, document) - 1
        return self.parts[self.of_part[run]]._replace(line=self.lines[run] + document - self.firsts[run])

    def write(self, path: Path) -> None:
        """Write them as JSON, without paths: the same text may be in another place."""
        plain = asdict(self) | {"parts": [part._replace(path="") for part in self.parts]}
        with draft(path, durable=False) as file:
            file.write(json.dumps(plain).encode())


def read_origins(path: Path) -> Origins | None:
    """What was written; None where nothing was, or it is damaged."""
    try:
        plain = read_json(path, LARGEST)
        return Origins(**plain | {"parts": [InputLine(*part) for part in plain["parts"]]})
    except (OSError, ValueError, TypeError, KeyError):
        return None

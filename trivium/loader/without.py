"""Documents that do not count in the loss: their targets are ignored, in the batches that have them.

A document stays in its row, so that no other row, position or address changes; its tokens have no loss, and where
documents are masked nothing else sees them. In rows with joined documents those after it still do. Costs a search among
the documents for each piece of a source that has any; nothing where none has.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from trivium.config.sources import base_of
from trivium.plan.plan import Plan
from trivium.rows.batch import IGNORED
from trivium.rows.blocks import FileBlocks
from trivium.rows.gather import ROW_ADDRESS, ROW_PIECES
from trivium.rows.kernels import array_at, compiled
from trivium.rows.piece import file_of, length_of

Int64s = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Without:
    """What is ignored of each source, by its number in a loader: some documents, or all of them."""

    spans: Mapping[int, Int64s] = field(default_factory=dict)  # (documents, 3): file, first token and end; in order
    whole: frozenset[int] = frozenset()

    @classmethod
    def of(cls, plan: Plan, names: Sequence[str]) -> "Without":
        """What a plan's config says; a view has it of the source that has its documents."""
        bases = {name: base_of(plan.config.sources, name) for name in names}
        given = {name: base.without for name, base in bases.items() if base is not None and base.without}
        return cls.given(plan, names, given)

    @classmethod
    def given(cls, plan: Plan, names: Sequence[str], given: Mapping[str, Sequence[int] | None]) -> "Without":
        """These documents of sources; None means all of a source's."""
        spans = {
            names.index(name): _spans(plan.sources[name].blocks, documents)
            for name, documents in given.items()
            if documents is not None and name in plan.sources
        }
        return cls(spans, frozenset(names.index(name) for name, documents in given.items() if documents is None))

    def apply(self, rows: Int64s, source: NDArray[np.int32], targets: NDArray[np.int32]) -> None:
        """Ignore targets of rows that were gathered; `rows` as `gather` takes them."""
        for number in self.whole:
            targets[source == number] = IGNORED
        for number, spans in self.spans.items():
            chosen = np.flatnonzero(source == number)
            if chosen.size:
                _ignore(rows, chosen, spans, targets)


def _spans(blocks: object, documents: Sequence[int]) -> Int64s:
    assert isinstance(blocks, FileBlocks), "only files have documents to name"
    return np.array(sorted(blocks.document_span(document) for document in set(documents)), np.int64).reshape(-1, 3)


@compiled
def _ignore(rows: Int64s, chosen: Int64s, spans: Int64s, targets: NDArray[np.int32]) -> None:
    """In the chosen rows, ignore the targets of pieces whose document is one of the spans."""
    for row in chosen:
        pieces = array_at(rows[row, ROW_ADDRESS], (rows[row, ROW_PIECES], 2), np.int64)
        column = 0
        for piece in range(pieces.shape[0]):
            offset, file = pieces[piece, 0], file_of(pieces[piece, 1])
            stop = min(column + length_of(pieces[piece, 1]), targets.shape[1])
            low, high = 0, spans.shape[0]
            while low < high:  # the first span after the token
                middle = (low + high) // 2
                if (spans[middle, 0], spans[middle, 1]) <= (file, offset):
                    low = middle + 1
                else:
                    high = middle
            if low and spans[low - 1, 0] == file and offset < spans[low - 1, 2]:
                targets[row, column:stop] = IGNORED
            column = stop

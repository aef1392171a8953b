"""A step's rows in plain values, to be kept beside a step that went wrong."""

from dataclasses import dataclass

from trivium.loader.trace import rows_of
from trivium.plan.plan import Plan


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of a document in a row."""

    file: str
    document: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a step: whose it is, and the documents that stand in it."""

    row: int
    source: str
    epoch: int
    pieces: tuple[Piece, ...]


def row_list(plan: Plan, step: int) -> list[Row]:
    """Every row of a step."""
    return [
        Row(
            row.row,
            row.source,
            row.epoch,
            tuple(Piece(piece.file, piece.document, piece.start, piece.stop) for piece in row.pieces),
        )
        for row in rows_of(plan, step)
    ]

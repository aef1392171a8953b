"""Rows of every step of a stage: a small list of pieces, each of steps with one batch size.

This module owns the arithmetic from steps to rows and back, for a size that is constant, that goes up with the tokens
read, or that was changed while the run went on. Steps and rows are counted from the stage's first. An answer costs a
search in the list, for any step.
"""

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, replace
from operator import attrgetter

MOST_SIZES = 4096  # of one ramp


@dataclass(frozen=True, slots=True)
class BatchPiece:
    """Steps of one size, from a step on to the next piece."""

    step: int
    row: int  # rows of the steps before it
    size: int


@dataclass(frozen=True, slots=True)
class Batches:
    """Pieces in order, each of one step or more; the first starts at step 0, the last has no end."""

    pieces: tuple[BatchPiece, ...]

    @classmethod
    def constant(cls, size: int) -> "Batches":
        """Every step has this many rows."""
        return cls((BatchPiece(0, 0, size),))

    @classmethod
    def ramp(cls, first: int, last: int, by: int, over: int, seq_len: int) -> "Batches":
        """From `first` rows in a step to `last`, in increments of `by`, over the stage's first `over` tokens.

        With n increments a step has `first + k * by` rows where the steps before it have read at least k / n of those
        tokens, and less than (k + 1) / n: linear in the tokens read, rounded down.
        """
        increments = (last - first) // by
        batches = cls.constant(first)
        for number in range(1, increments + 1):
            due = -(-number * over // (increments * seq_len))
            batches = batches.changed(batches.steps_for(due), first + number * by)
        return batches

    def changed(self, step: int, size: int) -> "Batches":
        """The same steps before this one; from it on every step has `size` rows."""
        kept = self.until(step)
        if kept and kept[-1].size == size:
            return Batches(kept)
        return Batches((*kept, BatchPiece(step, self.rows_before(step), size)))

    def until(self, step: int) -> tuple[BatchPiece, ...]:
        """The pieces that begin before a step."""
        return self.pieces[: bisect_left(self.pieces, step, key=attrgetter("step"))]

    def since(self, step: int) -> tuple[BatchPiece, ...]:
        """The pieces from a step on, the first of them cut to it."""
        number = self._number_at(step)
        cut = replace(self.pieces[number], step=step, row=self.rows_before(step))
        return (cut, *self.pieces[number + 1 :])

    def size_at(self, step: int) -> int:
        """Rows of a step."""
        return self.pieces[self._number_at(step)].size

    def end_of_size(self, step: int) -> int | None:
        """The first step after this one with another size; None where all have the same."""
        number = self._number_at(step) + 1
        return self.pieces[number].step if number < len(self.pieces) else None

    def rows_before(self, step: int) -> int:
        """Rows of all steps before this one."""
        piece = self.pieces[self._number_at(step)]
        return piece.row + (step - piece.step) * piece.size

    def place_of(self, row: int) -> tuple[int, int]:
        """The step that has a row of the stage, and which of the step's rows it is."""
        piece = self.pieces[bisect_right(self.pieces, row, key=attrgetter("row")) - 1]
        steps, within = divmod(row - piece.row, piece.size)
        return piece.step + steps, within

    def steps_for(self, rows: int) -> int:
        """The fewest steps that have this many rows."""
        if rows <= 0:
            return 0
        return self.place_of(rows - 1)[0] + 1

    @property
    def largest(self) -> int:
        """Rows of the largest step."""
        return max(piece.size for piece in self.pieces)

    def _number_at(self, step: int) -> int:
        return bisect_right(self.pieces, step, key=attrgetter("step")) - 1

"""A shape of the learning rate, its lengths in steps -> the pieces of a curve."""

from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Literal

from trivium.config.rates import Cycle, DecayShape, Schedule, StageLr
from trivium.plan.lr.curve import ONE, ZERO, CurvePiece, Formula, Number, constant, exact


@dataclass(frozen=True, slots=True)
class PlacedPoint:
    """A point of a curve, at a step of it."""

    step: int
    lr: Fraction
    form: Literal["linear", "cosine"]  # from the point before to this one


@dataclass(frozen=True, slots=True)
class Extension:
    """Up to step `at` a schedule is as it was; the rest of it ends at `end`."""

    at: int
    end: int


@dataclass(frozen=True, slots=True)
class Lengths:
    """A shape's lengths in steps, once extents are resolved."""

    span: int
    warmup: int = 0
    decay: int = 0
    warmup_from: float | None = None  # the warm-up's first multiplier; None: one step above zero
    half_life: int = 1
    points: tuple[PlacedPoint, ...] = ()
    extension: Extension | None = None


@dataclass(frozen=True, slots=True)
class Fall:
    """How a learning rate falls from 1."""

    form: DecayShape
    to: Fraction
    exponent: Fraction
    half_life: int

    def formula(self, start: int, length: int = 1) -> Formula:
        """From `start` on, over its length; an exponential has no end."""
        if self.form == "exponential":
            return Formula("exponential", ONE, ZERO, start, self.half_life)
        form: DecayShape = self.form
        if form == "power" and self.exponent in (1, Fraction(1, 2)):  # one past, whichever way it was written
            form = "linear" if self.exponent == 1 else "sqrt"
        exponent = self.exponent if form == "power" else ONE
        return Formula(form, ONE, self.to, start, length, exponent)

    def pieces(self, start: int, length: int) -> list[CurvePiece]:
        """The fall, and after it what it has come to."""
        formula = self.formula(start, length)
        last = formula.value_at(start + length) if self.form == "exponential" else self.to
        after = CurvePiece(start + length, constant(last))
        return [CurvePiece(start, formula), after] if length else [after]


def fall_of(shaped: Schedule | StageLr, form: DecayShape, lengths: Lengths) -> Fall:
    """A fall of this form, with what the table has for it."""
    exponent = ONE if shaped.exponent is None else exact(shaped.exponent)
    return Fall(form, exact(shaped.to), exponent, lengths.half_life)


def shape_pieces(shaped: Schedule | StageLr, lengths: Lengths, start: int, scale: Number) -> list[CurvePiece]:
    """The pieces of one shape from `start` on; after its span it stays where it ended."""
    pieces = point_pieces(lengths.points, start) if shaped.points else _shape_pieces(shaped, lengths, start)
    return [piece.scaled(scale) for piece in pieces]


def _shape_pieces(shaped: Schedule | StageLr, lengths: Lengths, start: int) -> list[CurvePiece]:
    end, warm = start + lengths.span, start + lengths.warmup
    rise = [CurvePiece(start, warmup_formula(lengths, start))] if lengths.warmup else []
    match shaped.shape:
        case None | "constant":
            after = [CurvePiece(warm, constant(ONE))]
        case "inverse-sqrt":
            after = [CurvePiece(warm, Formula("inverse-sqrt", ONE, ONE, start - 1, max(1, lengths.warmup)))]
        case "wsd" if shaped.cycle is not None:
            after = cycle_pieces(shaped.cycle, fall_of(shaped, shaped.decay_shape, lengths), start, lengths)
        case "wsd":
            begin = end - lengths.decay
            stable = [CurvePiece(warm, constant(ONE))] if begin > warm else []
            after = [*stable, *fall_of(shaped, shaped.decay_shape, lengths).pieces(begin, lengths.decay)]
        case "exponential":
            after = [CurvePiece(warm, fall_of(shaped, "exponential", lengths).formula(warm))]
        case form:
            after = fall_of(shaped, form, lengths).pieces(warm, max(0, end - warm))
    return [*rise, *after]


def cycle_pieces(cycle: Cycle, fall: Fall, start: int, lengths: Lengths) -> list[CurvePiece]:
    """Every cycle of a span: a rise (the first one's is the shape's own), the peak, and a fall at its end.

    After the span comes another cycle's first step: what the learning rate stands at there.
    """
    assert cycle.steps is not None, "a checked cycle has a length"
    assert cycle.decay is not None, "a checked cycle has a decay"
    pieces: list[CurvePiece] = []
    for begin in range(start, start + lengths.span + 1, cycle.steps):
        end = begin + cycle.steps
        warm = begin + (lengths.warmup if begin == start else cycle.warmup)
        if begin > start and cycle.warmup:
            low = pieces[-1].formula.first  # where the fall before it has come to
            pieces[-1] = CurvePiece(begin, Formula("linear", low, ONE, begin - 1, cycle.warmup))
        elif begin > start:
            pieces.pop()
        fallen = fall.pieces(end - cycle.decay, cycle.decay)
        stable = [CurvePiece(warm, constant(ONE))] if end - cycle.decay > warm else []
        pieces += [*stable, *fallen]
    return pieces


def point_pieces(points: tuple[PlacedPoint, ...], start: int) -> list[CurvePiece]:
    """The curve through the points, and after the last one its value."""
    pieces: list[CurvePiece] = []
    for before, point in pairwise(points):
        length = point.step - before.step
        if length and before.lr == point.lr:
            pieces.append(CurvePiece(start + before.step, constant(point.lr)))
        elif length:
            formula = Formula(point.form, before.lr, point.lr, start + before.step, length)
            pieces.append(CurvePiece(start + before.step, formula))
    return [*pieces, CurvePiece(start + points[-1].step, constant(points[-1].lr))]


def warmup_formula(lengths: Lengths, start: int) -> Formula:
    """A warm-up from `start` on."""
    if lengths.warmup_from is not None:
        return Formula("linear", exact(lengths.warmup_from), ONE, start, lengths.warmup)
    # Origin one step early: update 0 of w has 1/w, update w - 1 has 1.
    return Formula("linear", ZERO, ONE, start - 1, lengths.warmup)

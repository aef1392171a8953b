"""A number for every step, in pieces: warm-up, hold, decay.

Each piece is a formula with exact end values, so that two curves can be compared without evaluating a
cosine: the same formula gives the same fingerprint on every machine.
"""

import math
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal

Form = Literal["constant", "linear", "cosine", "1-sqrt", "sqrt", "inverse-sqrt"]
ZERO = Fraction(0)
ONE = Fraction(1)
# (1 + cos(pi x)) / 2 at the only fractions x where it is a fraction too.
COSINE_REST = {
    Fraction(0): Fraction(1),
    Fraction(1, 3): Fraction(3, 4),
    Fraction(1, 2): Fraction(1, 2),
    Fraction(2, 3): Fraction(1, 4),
    Fraction(1): Fraction(0),
}


def exact(number: float) -> Fraction:
    """The decimal that the user wrote: 0.1 -> 1/10."""
    return Fraction(repr(number))


@dataclass(frozen=True, slots=True)
class Line:
    """Exact values at `steps` steps from `start` on: `value`, `value + slope`, and so on."""

    start: int
    steps: int
    value: Fraction
    slope: Fraction

    def scaled(self, factor: Fraction) -> "Line":
        return replace(self, value=self.value * factor, slope=self.slope * factor)

    def without_first(self) -> list["Line"]:
        """The line from its second step on; none where it has only one."""
        if self.steps == 1:
            return []
        return [Line(self.start + 1, self.steps - 1, self.value + self.slope, self.slope)]

    def reaches(self, value: Fraction) -> bool:
        """Whether it would have this value at the step after its last; one step alone fits any value."""
        return self.steps == 1 or self.value + self.slope * self.steps == value

    def identity(self) -> list[object]:
        """What is entered in a record."""
        if not self.slope:
            return [self.start, ("constant", str(self.value)), None]
        return [self.start, ("linear", str(self.value), str(self.slope)), None]


@dataclass(frozen=True, slots=True)
class Formula:
    """From `first` at step `origin` to `last` at `origin + length`."""

    form: Form
    first: Fraction
    last: Fraction
    origin: int = 0
    length: int = 1

    def at(self, step: int) -> float:
        first, last = float(self.first), float(self.last)
        part = (step - self.origin) / self.length
        match self.form:
            case "constant":
                return first
            case "linear":
                # As a weighted mean, so that both ends are met exactly.
                return first * (1 - part) + last * part
            case "cosine":
                return last + (first - last) * (1 + math.cos(math.pi * part)) / 2
            case "1-sqrt":
                return last + (first - last) * (1 - math.sqrt(part))
            case "sqrt":
                return last + (first - last) * math.sqrt(1 - part)
            case "inverse-sqrt":
                return first / math.sqrt(part)

    def identity(self, start: int) -> tuple[object, ...]:
        """The form, its ends, the steps of it before `start`, and its length."""
        return (self.form, str(self.first), str(self.last), start - self.origin, self.length)

    def scaled(self, factor: Fraction) -> "Formula":
        return replace(self, first=self.first * factor, last=self.last * factor)

    def exactly_at(self, step: int) -> Fraction | None:
        """The value at a step where that is a fraction, as at a cosine's middle; else None."""
        part = Fraction(step - self.origin, self.length)
        match self.form:
            case "constant":
                return self.first
            case "linear":
                return self.first + (self.last - self.first) * part
            case "cosine":
                rest = COSINE_REST.get(part)
                return None if rest is None else self.last + (self.first - self.last) * rest
            case "1-sqrt":
                root = _root(part)
                return None if root is None else self.last + (self.first - self.last) * (1 - root)
            case "sqrt":
                root = _root(1 - part)
                return None if root is None else self.last + (self.first - self.last) * root
            case "inverse-sqrt":
                root = _root(part)
                return None if root is None else self.first / root

    def line(self, start: int, steps: int) -> Line | None:
        """The values at `steps` steps from `start` on where they are on a line: one or two always are, if exact."""
        if self.form == "constant" or (self.first == self.last and self.form != "inverse-sqrt"):
            return Line(start, steps, self.first, ZERO)
        value = self.exactly_at(start)
        following = self.exactly_at(start + 1) if steps > 1 else value
        if value is None or following is None or (steps > 2 and self.form != "linear"):
            return None
        return Line(start, steps, value, following - value)


@dataclass(frozen=True, slots=True)
class CurvePiece:
    """A formula, times a ramp if it has one, from `start` to the next piece."""

    start: int
    formula: Formula
    ramp: Formula | None = None

    def at(self, step: int) -> float:
        value = self.formula.at(step)
        return value if self.ramp is None else value * self.ramp.at(step)

    @property
    def is_zero(self) -> bool:
        """Whether it is 0 at every step."""
        return self.formula.first == self.formula.last == 0

    def line(self, steps: int) -> Line | None:
        line = self.formula.line(self.start, steps)
        if self.ramp is None or line is None:
            return line
        ramp = self.ramp.line(self.start, steps)
        if ramp is None or (line.slope and ramp.slope):
            return None
        return ramp.scaled(line.value) if ramp.slope else line.scaled(ramp.value)

    def identity(self) -> list[object]:
        """What is entered in a record where the values are on no line."""
        ramp = None if self.ramp is None else self.ramp.identity(self.start)
        return [self.start, self.formula.identity(self.start), ramp]


@dataclass(frozen=True, slots=True)
class Curve:
    """Pieces in order; the first starts at 0, the last has no end."""

    pieces: tuple[CurvePiece, ...]

    def at(self, step: int) -> float:
        return self.pieces[bisect_right(self.pieces, step, key=lambda piece: piece.start) - 1].at(step)

    def until(self, end: int) -> list[CurvePiece]:
        """The pieces that begin before a step."""
        return [piece for piece in self.pieces if piece.start < end]

    def between(self, start: int, end: int) -> list[CurvePiece]:
        """The pieces of `[start, end)`, cut to it."""
        return [piece for piece in self.from_step(start) if piece.start < end]

    def from_step(self, start: int) -> list[CurvePiece]:
        """The pieces from a step on, the first of them cut to it."""
        first = max(i for i, piece in enumerate(self.pieces) if piece.start <= start)
        return [replace(self.pieces[first], start=start), *self.pieces[first + 1 :]]

    def identity(self, end: int) -> list[list[object]]:
        """What decides the values before step `end`: equal exactly if all of them are equal."""
        pieces = self.until(end)
        ends = [*(piece.start for piece in pieces[1:]), end]
        found: list[Line | list[object]] = []
        for piece, stop in zip(pieces, ends, strict=True):
            line = piece.line(stop - piece.start)
            if line is None:
                found.append(piece.identity())
            else:
                found[-1:] = _drawn_on(found[-1:], line)
        return [entry.identity() if isinstance(entry, Line) else entry for entry in found]


def _drawn_on(before: list["Line | list[object]"], line: Line) -> list["Line | list[object]"]:
    """The line after what came before it, which is lengthened while it can be: 1 | 2, 3 | 5, 7 -> 1, 2, 3 | 5, 7."""
    rest = [line]
    while rest and before and isinstance(last := before[-1], Line) and last.reaches(rest[0].value):
        (line,) = rest
        last = replace(last, steps=last.steps + 1, slope=line.value - last.value if last.steps == 1 else last.slope)
        if line.slope == last.slope:
            last, rest = replace(last, steps=last.steps + line.steps - 1), []
        else:
            rest = line.without_first()
        before = [*before[:-1], last]
    return [*before, *rest]


def _root(number: Fraction) -> Fraction | None:
    """The square root where it is a fraction."""
    root = Fraction(math.isqrt(number.numerator), math.isqrt(number.denominator))
    return root if root * root == number else None


def joined(pieces: Iterable[CurvePiece]) -> Curve:
    """A curve of these pieces; neighbours with the same formula become one."""
    kept: list[CurvePiece] = []
    for piece in pieces:
        if not kept or (kept[-1].formula, kept[-1].ramp) != (piece.formula, piece.ramp):
            kept.append(piece)
    return Curve(tuple(kept))


def constant(value: Fraction) -> Formula:
    return Formula("constant", value, value)

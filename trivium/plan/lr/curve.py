"""A number for every step, in pieces: warm-up, hold, decay.

Each piece is a formula with exact end values, so that two curves can be compared without evaluating a
cosine: the same formula gives the same fingerprint on every machine. Where one curve begins at the height of
another, which need not be a fraction, that height is kept as a `Level`: which formula, at which step.
"""

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal, Union

Form = Literal["constant", "linear", "cosine", "1-sqrt", "sqrt", "power", "exponential", "inverse-sqrt"]
Number = Union[Fraction, "Level"]
ENDLESS = ("exponential", "inverse-sqrt")  # they have no last value
MOST_EXACT = 64  # halvings, and whole exponents, up to which a value is worth knowing as a fraction
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
class Level:
    """The value of a formula, times its ramp's, at a step; that times `factor`, plus `offset`."""

    formula: "Formula"
    ramp: "Formula | None"
    step: int
    factor: Fraction = ONE
    offset: Fraction = ZERO

    def __float__(self) -> float:
        value = CurvePiece(0, self.formula, self.ramp).at(self.step)
        return value * float(self.factor) + float(self.offset)

    def __mul__(self, factor: Number) -> Number:
        assert isinstance(factor, Fraction), "only a fraction scales a level"
        return replace(self, factor=self.factor * factor, offset=self.offset * factor) if factor else ZERO

    def __add__(self, other: Number) -> Number:
        if isinstance(other, Fraction):
            return replace(self, offset=self.offset + other)
        factor, offset = self.factor + other.factor, self.offset + other.offset
        assert replace(self, factor=ONE, offset=ZERO) == replace(other, factor=ONE, offset=ZERO), "levels of one curve"
        return replace(self, factor=factor, offset=offset) if factor else offset

    def __sub__(self, other: Number) -> Number:
        return self + other * Fraction(-1)

    def __rsub__(self, other: Fraction) -> Number:
        return self * Fraction(-1) + other

    __rmul__, __radd__ = __mul__, __add__

    def __str__(self) -> str:
        ramp = "" if self.ramp is None else f" ramped {self.ramp.identity(self.step)}"
        return f"{self.offset} + {self.factor} x {self.formula.identity(self.step)}{ramp}"


@dataclass(frozen=True, slots=True)
class Line:
    """Exact values at `steps` steps from `start` on: `value`, `value + slope`, and so on."""

    start: int
    steps: int
    value: Number
    slope: Number

    def scaled(self, factor: Number) -> "Line":
        return replace(self, value=self.value * factor, slope=self.slope * factor)

    def without_first(self) -> list["Line"]:
        """The line from its second step on; none where it has only one."""
        if self.steps == 1:
            return []
        return [Line(self.start + 1, self.steps - 1, self.value + self.slope, self.slope)]

    def reaches(self, value: Number) -> bool:
        """Whether it would have this value at the step after its last; one step alone fits any fraction."""
        if isinstance(value, Level) or isinstance(self.value, Level):
            return False
        return self.steps == 1 or self.value + self.slope * Fraction(self.steps) == value

    def identity(self) -> list[object]:
        """What is entered in a record."""
        if not self.slope or self.steps == 1:
            return [self.start, ("constant", str(self.value)), None]
        return [self.start, ("linear", str(self.value), str(self.slope)), None]


@dataclass(frozen=True, slots=True)
class Formula:
    """From `first` at step `origin` to `last` at `origin + length`, which need not be whole once it is stretched.

    An exponential's length is its half-life, and it has no end; a power has an exponent.
    """

    form: Form
    first: Number
    last: Number
    origin: int | Fraction = 0
    length: int | Fraction = 1
    exponent: Fraction = ONE

    def at(self, step: int) -> float:
        first, last = float(self.first), float(self.last)
        part = float((step - self.origin) / self.length)
        if part == 0:
            return first
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
            case "power":
                return last + (first - last) * math.pow(1 - part, float(self.exponent))
            case "exponential":
                return first * math.pow(0.5, part)
            case "inverse-sqrt":
                return first / math.sqrt(part)

    def identity(self, start: int) -> tuple[object, ...]:
        """The form, its ends, the steps of it before `start`, and its length; a power's exponent."""
        steps = (_plain(start - self.origin), _plain(self.length))
        exponent = (str(self.exponent),) if self.form == "power" else ()
        return (self.form, str(self.first), str(self.last), *steps, *exponent)

    def scaled(self, factor: Number) -> "Formula":
        return replace(self, first=self.first * factor, last=self.last * factor)

    def moved(self, steps: int) -> "Formula":
        """The same formula, this number of steps later."""
        return self if self.form == "constant" else replace(self, origin=self.origin + steps)

    def stretched(self, at: int, ratio: Fraction) -> "Formula":
        """The same formula, its steps after `at` taken `ratio` times as long."""
        if self.form == "constant":
            return self
        return replace(self, origin=at - (at - self.origin) * ratio, length=self.length * ratio)

    def value_at(self, step: int, ramp: "Formula | None" = None) -> Number:
        """The exact value at a step, times the ramp's: a fraction, or a level."""
        value, rise = self.exactly_at(step), ONE if ramp is None else ramp.exactly_at(step)
        if value is None or isinstance(rise, Level) or rise is None:
            return Level(self, ramp, step)
        return value * rise

    def exactly_at(self, step: int) -> Number | None:
        """The value at a step where it can be told exactly from both ends, as at a cosine's middle; else None."""
        part = Fraction(step - self.origin) / self.length
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
            case "power":
                rest = _power(1 - part, self.exponent)
                return None if rest is None else self.last + (self.first - self.last) * rest
            case "exponential":
                halved = part.denominator == 1 and 0 <= part <= MOST_EXACT
                return self.first * Fraction(1, 2 ** int(part)) if halved else None
            case "inverse-sqrt":
                root = _root(part)
                return None if root is None else self.first * (1 / root)

    def line(self, start: int, steps: int) -> Line | None:
        """The values at `steps` steps from `start` on where they are on a line: one or two always are, if exact."""
        if self.form == "constant" or (self.first == self.last and self.form not in ENDLESS):
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

    def scaled(self, factor: Number) -> "CurvePiece":
        return replace(self, formula=self.formula.scaled(factor))

    def moved(self, steps: int) -> "CurvePiece":
        """The same piece, this number of steps later."""
        ramp = None if self.ramp is None else self.ramp.moved(steps)
        return CurvePiece(self.start + steps, self.formula.moved(steps), ramp)

    def identity(self) -> list[object]:
        """What is entered in a record where the values are on no line."""
        ramp = None if self.ramp is None else self.ramp.identity(self.start)
        return [self.start, self.formula.identity(self.start), ramp]


@dataclass(frozen=True, slots=True)
class Curve:
    """Pieces in order; the first starts at 0, the last has no end."""

    pieces: tuple[CurvePiece, ...]

    def at(self, step: int) -> float:
        return self.piece_at(step).at(step)

    def value_at(self, step: int) -> Number:
        """Where the curve stands at a step, exactly."""
        piece = self.piece_at(step)
        return piece.formula.value_at(step, piece.ramp)

    def piece_at(self, step: int) -> CurvePiece:
        return self.pieces[bisect_right(self.pieces, step, key=lambda piece: piece.start) - 1]

    def moved(self, steps: int) -> "Curve":
        """The same curve, this number of steps later, or earlier where it is negative."""
        return self if not steps else Curve(tuple(piece.moved(steps) for piece in self.pieces))

    def until(self, end: int) -> list[CurvePiece]:
        """The pieces that begin before a step."""
        return [piece for piece in self.pieces if piece.start < end]

    def between(self, start: int, end: int | None = None) -> list[CurvePiece]:
        """The pieces of `[start, end)`, cut to it; without an end, all from `start` on."""
        pieces = list(self.pieces) if end is None else self.until(end)
        first = max(i for i, piece in enumerate(pieces) if piece.start <= start)
        return [replace(pieces[first], start=start), *pieces[first + 1 :]]

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


def _power(number: Fraction, exponent: Fraction) -> Fraction | None:
    """A whole power; None for any other."""
    return number ** int(exponent) if exponent.denominator == 1 and exponent <= MOST_EXACT else None


def _plain(number: int | Fraction) -> int | str:
    """For a record: a whole number as it is, a fraction as text."""
    return int(number) if number == int(number) else str(number)


def stretched(pieces: Sequence[CurvePiece], at: int, end: int, new_end: int) -> list[CurvePiece]:
    """The pieces up to step `at` as they are; the rest of them, up to `end`, stretched so that it ends at `new_end`.

    At `at` both have the same value: that step is still the old ones', to the bit.
    """
    ratio = Fraction(new_end - at, end - at)
    kept = [piece for piece in pieces if piece.start <= at]
    rest = [replace(kept[-1], start=at), *pieces[len(kept) :]]
    starts = [at + 1, *(math.ceil(at + (piece.start - at) * ratio) for piece in rest[1:])]
    after = [CurvePiece(start, piece.formula.stretched(at, ratio)) for start, piece in zip(starts, rest, strict=True)]
    return [*kept, *after]


def joined(pieces: Iterable[CurvePiece]) -> Curve:
    """A curve of these pieces; neighbours with the same formula become one, and one without a step is dropped."""
    kept: list[CurvePiece] = []
    for piece in pieces:
        if kept and kept[-1].start >= piece.start:
            kept.pop()
        if not kept or (kept[-1].formula, kept[-1].ramp) != (piece.formula, piece.ramp):
            kept.append(piece)
    return Curve(tuple(kept))


def constant(value: Number) -> Formula:
    return Formula("constant", value, value)

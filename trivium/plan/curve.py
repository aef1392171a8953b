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

Form = Literal["constant", "linear", "cosine", "1-sqrt", "inverse-sqrt"]
ONE = Fraction(1)


def exact(number: float) -> Fraction:
    """The decimal that the user wrote: 0.1 -> 1/10."""
    return Fraction(repr(number))


@dataclass(frozen=True, slots=True)
class Formula:
    """From `first` at step `origin` to `last` at `origin + length`."""

    form: Form
    first: Fraction
    last: Fraction
    origin: int = 0
    length: int = 1

    def at(self, step: int) -> float:
        """The value at a step."""
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
            case "inverse-sqrt":
                return first / math.sqrt(part)

    def scaled(self, factor: Fraction) -> "Formula":
        """The same form, higher or lower."""
        return replace(self, first=self.first * factor, last=self.last * factor)

    def identity(self, start: int, steps: int) -> tuple[object, ...]:
        """What decides the values at `steps` steps from `start` on; equal identities give equal values."""
        if self.form == "constant" or self.first == self.last:
            return ("constant", str(self.first))
        if steps == 1 and start == self.origin and self.form != "inverse-sqrt":
            return ("constant", str(self.first))
        if self.form == "linear":
            slope = (self.last - self.first) / self.length
            value = self.first + slope * (start - self.origin)
            return ("constant", str(value)) if steps == 1 else ("linear", str(value), str(slope))
        return (self.form, str(self.first), str(self.last), start - self.origin, self.length)


@dataclass(frozen=True, slots=True)
class Piece:
    """A formula, times a ramp where there is one, from `start` to the next piece."""

    start: int
    formula: Formula
    ramp: Formula | None = None

    def at(self, step: int) -> float:
        """The value at a step."""
        value = self.formula.at(step)
        return value if self.ramp is None else value * self.ramp.at(step)

    def identity(self, steps: int) -> list[object]:
        """What decides the first `steps` values."""
        ramp = None if self.ramp is None else self.ramp.identity(self.start, steps)
        if ramp is not None and ramp == ("constant", "1"):
            ramp = None
        return [self.start, self.formula.identity(self.start, steps), ramp]


@dataclass(frozen=True, slots=True)
class Curve:
    """Pieces in order; the first starts at 0, the last goes on for ever."""

    pieces: tuple[Piece, ...]

    def at(self, step: int) -> float:
        """The value at a step."""
        return self.pieces[bisect_right(self.pieces, step, key=lambda piece: piece.start) - 1].at(step)

    def until(self, end: int) -> list[Piece]:
        """The pieces that begin before a step."""
        return [piece for piece in self.pieces if piece.start < end]

    def between(self, start: int, end: int) -> list[Piece]:
        """The pieces of `[start, end)`, cut to it."""
        pieces = self.until(end)
        first = max(i for i, piece in enumerate(pieces) if piece.start <= start)
        return [replace(pieces[first], start=start), *pieces[first + 1 :]]

    def identity(self, end: int) -> list[list[object]]:
        """What decides the values before step `end`: equal exactly if all of them are equal."""
        pieces = self.until(end)
        ends = [*(piece.start for piece in pieces[1:]), end]
        found: list[list[object]] = []
        for piece, stop in zip(pieces, ends, strict=True):
            identity = piece.identity(stop - piece.start)
            if not (found and found[-1][1:] == identity[1:] and _is_constant(identity)):
                found.append(identity)
        return found


def _is_constant(identity: list[object]) -> bool:
    formula = identity[1]
    return isinstance(formula, tuple) and formula[0] == "constant" and identity[2] is None


def joined(pieces: Iterable[Piece]) -> Curve:
    """A curve of these pieces; neighbours with the same formula become one."""
    kept: list[Piece] = []
    for piece in pieces:
        if not kept or (kept[-1].formula, kept[-1].ramp) != (piece.formula, piece.ramp):
            kept.append(piece)
    return Curve(tuple(kept))


def constant(value: Fraction) -> Formula:
    """The same at every step."""
    return Formula("constant", value, value)

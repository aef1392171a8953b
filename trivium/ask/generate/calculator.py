"""What a model asks of its calculator -> the answer as text: sums in exact fractions, and letters counted in a word.

A parser of its own, for numbers, + - * / // % and brackets, and nothing else: `12/60` -> `0.2`, `1,200*2` -> `2400`,
`30*50%` -> `15`, `"mississippi".count("s")` -> `4`. There is no power, so that no answer is much longer than its
question.
"""

import re
from fractions import Fraction

LONGEST = 200  # characters of a question
DEEPEST = 20  # brackets and signs in one another
DIGITS = 10  # of an answer that has a point

_TOKEN = re.compile(r"\s*(?:(\d[\d,]*(?:\.\d+)?|\.\d+)|(//|[-+*/%()]))")
_COUNT = re.compile(r"""\s*(["'])((?:(?!\1).)*)\1\.count\(\s*(["'])((?:(?!\3).)+)\3\s*\)\s*""")


def calculate(question: str) -> str | None:
    """The answer; None where the question is not understood or has no answer."""
    if len(question) > LONGEST:
        return None
    counted = _COUNT.fullmatch(question)
    if counted is not None:
        return str(counted.group(2).count(counted.group(4)))
    try:
        return _shown(_Sum(question).value())
    except (ValueError, ZeroDivisionError):
        return None


def _shown(value: Fraction) -> str:
    """Whole numbers as such, others with up to ten digits."""
    return str(value.numerator) if value.denominator == 1 else f"{float(value):.{DIGITS}g}"


class _Sum:
    """Reads a sum from left to right; ValueError where it is not one."""

    def __init__(self, question: str) -> None:
        self._left = _tokens(question)
        self._depth = 0

    def value(self) -> Fraction:
        value = self._added()
        if self._left:
            raise ValueError("something follows")
        return value

    def _next(self, *wanted: str) -> str | None:
        """Take the next token if it is one of these."""
        return self._left.pop(0) if self._left and self._left[0] in wanted else None

    def _added(self) -> Fraction:
        value = self._multiplied()
        while sign := self._next("+", "-"):
            other = self._multiplied()
            value = value + other if sign == "+" else value - other
        return value

    def _multiplied(self) -> Fraction:
        value = self._signed()
        while sign := self._next("*", "/", "//", "%"):
            other = self._signed()
            if sign == "*":
                value *= other
            elif sign == "/":
                value /= other
            else:
                value = Fraction(value // other) if sign == "//" else value % other
        return value

    def _signed(self) -> Fraction:
        self._depth += 1
        if self._depth > DEEPEST:
            raise ValueError("too deep")
        sign = self._next("+", "-")
        value = self._signed() if sign else self._percent()
        self._depth -= 1
        return -value if sign == "-" else value

    def _percent(self) -> Fraction:
        value = self._bracketed()
        follows = self._left[1:2]
        is_percent = self._left[:1] == ["%"] and not (follows and (follows[0] == "(" or follows[0][-1].isdigit()))
        if is_percent:
            self._left.pop(0)
        return value / 100 if is_percent else value

    def _bracketed(self) -> Fraction:
        if not self._left:
            raise ValueError("a number is missing")
        token = self._left.pop(0)
        if token != "(":
            return Fraction(token.replace(",", ""))
        value = self._added()
        if self._next(")") is None:
            raise ValueError("a bracket is open")
        return value


def _tokens(question: str) -> list[str]:
    tokens, place, text = [], 0, question.strip()
    while place < len(text):
        found = _TOKEN.match(text, place)
        if found is None:
            raise ValueError("no sum")
        tokens.append(found.group(1) or found.group(2))
        place = found.end()
    return tokens

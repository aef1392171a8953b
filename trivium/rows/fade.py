"""How much of a fade's rows the new mixture has given after any number of them; integers, the same on every machine.

A fade moves rows from one mixture to another along a curve from 0 to 1. Every curve is symmetric: what the old mixture
has yet to give at row n of N is what the new one had given at row N - n. So only first halves are computed. The sigmoid
is the one that theseus has, 1 / (1 + exp(-steepness * (t - 1/2))): it starts above 0 and ends as far below 1.
"""

from decimal import Context, Decimal
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from trivium.rows.kernels import formula

Shape = Literal["linear", "cosine", "sigmoid"]
SHAPES: tuple[Shape, ...] = ("linear", "cosine", "sigmoid")
MAX_FADE_ROWS = 2**31 - 1
STEEPNESS = 10.0
MAX_STEEPNESS = 1000.0

# A sigmoid's integral at evenly spaced places of its first half, in units of 2**-64 of the fade.
CurveTable = NDArray[np.uint64]
TABLE_STEPS = 2048
NO_TABLE: CurveTable = np.zeros(1, np.uint64)
_LINEAR, _COSINE = range(2)

# floor(2**64 * pi**(2 k) / (2 * (2 k + 1)!)) for k = 1, 2, ..., 10: see `_cosine_start`.
_SERIES = np.array(
    [
        15171838874637736216,
        7487002386487161160,
        1759375040586671831,
        241171328385291461,
        21638778218618541,
        1369013979106885,
        64341078063553,
        2334635982451,
        67374074758,
        1583227297,
    ],
    np.uint64,
)
_WORD_HALF = np.uint64(32)
_LOW_HALF = np.uint64(2**32 - 1)


@formula
def _product_high(a: np.uint64, b: np.uint64) -> np.uint64:
    """The upper 64 bits of a product: a and b are fractions in units of 2**-64, and so is the result."""
    a_high, a_low = a >> _WORD_HALF, a & _LOW_HALF
    b_high, b_low = b >> _WORD_HALF, b & _LOW_HALF
    cross = a_high * b_low + ((a_low * b_low) >> _WORD_HALF)
    other = a_low * b_high + (cross & _LOW_HALF)
    return a_high * b_high + (cross >> _WORD_HALF) + (other >> _WORD_HALF)


@formula
def _part(rows: np.uint64, whole: np.uint64) -> np.uint64:
    """rows / whole, which is under 1, in units of 2**-64."""
    scaled = rows << _WORD_HALF
    return ((scaled // whole) << _WORD_HALF) + ((scaled % whole) << _WORD_HALF) // whole


@formula
def _cosine_start(row: int, fade_rows: int) -> np.int64:
    """The integral of (1 - cos(pi x / N)) / 2 up to a row of the fade's first half, in units of 2**-32 rows.

    With x = row / N it is N * (x / 2 - sin(pi x) / (2 pi)), that is N * x**3 times a series in x**2, in
    fixed-point integers, as two machines need not agree on a sine. It is good to 2**-28 rows, and where it
    is rounded to another row it grows by more than 2**-20 a row: so it never steps back.
    """
    whole = np.uint64(fade_rows)
    x = _part(np.uint64(row), whole)
    square = _product_high(x, x)
    series = _SERIES[-1]
    for term in range(_SERIES.size - 2, -1, -1):
        series = _SERIES[term] - _product_high(series, square)
    part = _product_high(_product_high(x, square), series)
    return np.int64(_product_high(part, whole << _WORD_HALF))


@formula
def _sigmoid_start(row: int, fade_rows: int, table: CurveTable) -> np.int64:
    """The integral of a sigmoid up to a row of the fade's first half, in units of 2**-32 rows: straight between places.

    So the curve has 4,096 level steps, each as high as the sigmoid is on average there.
    """
    whole = np.uint64(fade_rows)
    places = np.uint64(row) * np.uint64(2 * TABLE_STEPS)
    place = np.int64(places // whole)
    part = table[place]
    if place < TABLE_STEPS:
        part += _product_high(table[place + 1] - part, _part(places % whole, whole))
    return np.int64(_product_high(part, whole << _WORD_HALF))


@formula
def new_rows(num_rows: int, fade_rows: int, curve: int, table: CurveTable) -> np.int64:
    """How many of the rows since a fade's first one the new mixture gives; each row adds 0 or 1."""
    if num_rows >= fade_rows:
        return np.int64((fade_rows + 1) // 2 + num_rows - fade_rows)
    if curve == _LINEAR:
        return np.int64((num_rows * num_rows + fade_rows) // (2 * fade_rows))
    early = min(num_rows, fade_rows - num_rows)
    start = _cosine_start(early, fade_rows) if curve == _COSINE else _sigmoid_start(early, fade_rows, table)
    if 2 * num_rows <= fade_rows:
        return np.int64((start + 2**31) >> 32)
    return np.int64(((num_rows << 32) - (fade_rows << 31) + start + 2**31) >> 32)


def curve_number(shape: Shape) -> int:
    """A shape as the kernels know it."""
    return SHAPES.index(shape)


def curve_table(shape: Shape, steepness: float) -> CurveTable:
    """What the kernels need to know of a curve beside its number."""
    return _sigmoid_table(steepness) if shape == "sigmoid" else NO_TABLE


@lru_cache
def _sigmoid_table(steepness: float) -> CurveTable:
    """(softplus(k (t - 1/2)) - softplus(-k / 2)) / k at every place t; Decimal rounds ln and exp correctly."""
    if not 0 < steepness <= MAX_STEEPNESS:
        raise ValueError(f"fade: a steepness of {steepness:g} is not within 0 to {MAX_STEEPNESS:g}. Write 10.")
    digits = Context(prec=50)
    k = Decimal(steepness)

    def softplus(argument: Decimal) -> Decimal:
        return digits.ln(digits.add(1, digits.exp(argument)))

    first = softplus(digits.divide(-k, 2))
    places = (
        digits.divide(digits.multiply(k, place - TABLE_STEPS), 2 * TABLE_STEPS) for place in range(TABLE_STEPS + 1)
    )
    integrals = [digits.divide(digits.subtract(softplus(place), first), k) for place in places]
    return np.array([int(digits.multiply(integral, 2**64)) for integral in integrals], np.uint64)

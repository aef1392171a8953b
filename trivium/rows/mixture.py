"""Shares -> which source gives the nth row of a stage, and how many rows of that source came before.

Shares are exact fractions. A mixture is a Huffman tree of two-way splits: a node that has seen m rows has
sent `floor(m * p / q + 1/2)` of them to its left. After any n rows every source has given `n * share` rows,
give or take 1.68, for any number of sources: each split is off by half a row at most, and in a Huffman tree
the splits above a source weigh 1, 1, 1/2, 1/3, 1/5, 1/8, ... at most, the reciprocal Fibonacci numbers.

A fade is one more split, between the old stage's mixture, which continues, and the new one. A stage with a fade is
within 5.54 rows: 1.68 of the new mixture, twice that of the old one, which starts somewhere inside, and the
half row by which the fade itself is rounded. A fade that is centred on the boundary begins in the old stage, which then
has a third mixture, the next stage's; with two such fades a stage is within 9.4 rows.

All of it is integer arithmetic, the same on every machine. To start at any row costs the same, some ten
microseconds and a hundred nanoseconds a source; from there on rows are dealt at tens of millions a second.
"""

import heapq
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Context, Decimal
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from trivium.rows.fade import MAX_FADE_ROWS, STEEPNESS, CurveTable, Shape, curve_number, curve_table, new_rows
from trivium.rows.kernels import compiled, formula, kernel_of

MAX_ROWS = 2**62
MAX_RELATIVE_ERROR = Fraction(1, 10**6)
FEW_SOURCES = 16  # Python counts up to this many, a kernel more

# A tree is an array of nodes, each above its children, the root first. A node's columns: p, q, and the left
# and right child, which is the number of a node, or ~source where a source hangs.
Nodes = NDArray[np.int64]
_P, _Q, _LEFT, _RIGHT = range(4)
_MAX_Q = 2**31  # so that 2 * p * q + q, above every number in a split, fits 63 bits

_MIN_WEIGHT = Fraction(1, 10**100)


def normalised(weights: Mapping[str, Fraction]) -> dict[str, Fraction]:
    """Shares in proportion to the weights: {"web": 3, "code": 1} -> {"web": 3/4, "code": 1/4}."""
    for name, weight in weights.items():
        if weight < 0:
            raise ValueError(f"{name}: a weight of {weight} is negative. Write 0 or more.")
    whole = sum(weights.values(), Fraction(0))
    if not whole:
        raise ValueError("mixture: no weight is above 0, so that no row has a source. Give one a weight.")
    return {name: Fraction(weight) / whole for name, weight in weights.items()}


def tempered(shares: Mapping[str, Fraction], temperature: float) -> dict[str, Fraction]:
    """Shares in proportion to share ** (1 / temperature): more than 1 evens them out, and zero stays zero."""
    if not temperature > 0:
        raise ValueError(f"temperature: {temperature} is not above 0. Write 1 to leave shares as they are.")
    shares = normalised(shares)
    if temperature == 1:
        return shares
    largest = max(shares.values())
    weights = {}
    for name, share in shares.items():
        weights[name] = _power(share / largest, temperature) if share else share
        if share and weights[name] < _MIN_WEIGHT:
            raise ValueError(f"temperature: {temperature} leaves nothing of {name}. Write a higher one.")
    return normalised(weights)


def _power(base: Fraction, temperature: float) -> Fraction:
    """base ** (1 / temperature), to fifty digits.

    Decimal rounds ln and exp correctly, to the last digit, where a float's power differs between machines.
    """
    digits = Context(prec=50)
    logarithm = digits.ln(digits.divide(Decimal(base.numerator), Decimal(base.denominator)))
    return Fraction(digits.exp(digits.divide(logarithm, Decimal(temperature))))


def _grow(shares: Sequence[Fraction]) -> Nodes:
    """The Huffman tree of the shares: the two smallest are joined, again and again; of equals, the first."""
    heap = [(share, source, ~source) for source, share in enumerate(shares) if share]
    heapq.heapify(heap)
    joined: list[tuple[int, int, int, int]] = []
    while len(heap) > 1:
        left_share, _, left = heapq.heappop(heap)
        right_share, _, right = heapq.heappop(heap)
        both = left_share + right_share
        split = (left_share / both).limit_denominator(_MAX_Q)
        heapq.heappush(heap, (both, len(shares) + len(joined), len(joined)))
        joined.append((split.numerator, split.denominator, left, right))
    if not joined:  # one source: a node that sends every row to its left
        joined.append((1, 1, heap[0][2], heap[0][2]))
    nodes = np.array(joined[::-1], np.int64)
    children = nodes[:, _LEFT:]
    children[children >= 0] = len(joined) - 1 - children[children >= 0]
    return nodes


def _shares_of(nodes: Nodes, num_sources: int) -> tuple[Fraction, ...]:
    """The shares that a tree gives."""
    shares = [Fraction(0)] * num_sources
    of_node = [Fraction(1)] + [Fraction(0)] * (len(nodes) - 1)
    for node, (p, q, left, right) in enumerate(nodes.tolist()):
        for child, split in ((left, Fraction(p, q)), (right, Fraction(q - p, q))):
            if child < 0:
                shares[~child] += of_node[node] * split
            else:
                of_node[child] = of_node[node] * split
    return tuple(shares)


@formula
def _to_left(rows: np.int64, p: np.int64, q: np.int64) -> np.int64:
    """floor(rows * p / q + 1/2), without a product that overflows."""
    return rows // q * p + (2 * (rows % q) * p + q) // (2 * q)


@formula
def _spread(nodes: Nodes, rows: int | np.int64, num_sources: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """How many of a tree's first rows each node has seen, and how many each source has given."""
    seen = np.zeros(len(nodes), np.int64)
    counts = np.zeros(num_sources, np.int64)
    seen[0] = rows
    for node in range(len(nodes)):
        to_left = _to_left(seen[node], nodes[node, _P], nodes[node, _Q])
        for child, given in ((nodes[node, _LEFT], to_left), (nodes[node, _RIGHT], seen[node] - to_left)):
            if child < 0:
                counts[~child] += given
            else:
                seen[child] = given
    return seen, counts


@dataclass(frozen=True, slots=True)
class Mixture:
    """The shares of one stage, as a tree; names are sorted, and a source is its index among them."""

    names: tuple[str, ...]
    shares: tuple[Fraction, ...]
    nodes: Nodes = field(repr=False, compare=False)

    @classmethod
    def from_shares(cls, shares: Mapping[str, Fraction]) -> "Mixture":
        """The mixture that gives these shares, which add up to 1.

        Exact for shares of up to nine decimals. Others may need a denominator over 2**31 in a split, and the
        nearest fraction with a smaller one takes its place: `Mixture.shares` has the shares that it gives. A share
        that would be off by more than a millionth of itself is refused.
        """
        names = tuple(sorted(shares))
        asked = [Fraction(shares[name]) for name in names]
        for name, share in zip(names, asked, strict=True):
            if share < 0:
                raise ValueError(f"{name}: a share of {share} is negative. Write 0 or more.")
        if sum(asked) != 1:
            raise ValueError(f"mixture: shares add up to {sum(asked)}, not to 1. Write shares that do.")
        nodes = _grow(asked)
        given = _shares_of(nodes, len(names))
        for name, share, found in zip(names, asked, given, strict=True):
            if abs(found - share) > share * MAX_RELATIVE_ERROR:
                raise ValueError(
                    f"{name}: a share of {float(share):.3g} is too small beside the others: a split of two "
                    "shares goes down to 1 in 2**31. Write 0 or a larger share."
                )
        return cls(names, given, nodes)

    def count(self, num_rows: int) -> NDArray[np.int64]:
        """How many of the first rows each source gives."""
        return _spread(self.nodes, num_rows, len(self.names))[1]


# What the kernels know of a stage's fades, in one small array: rows that the old and the new tree gave before; rows of
# the fade from the old mixture, how many of them the stage before had, how many of these were the new mixture's, and
# its curve; the row at which the next mixture begins to fade in, the rows of that fade and its curve. It is an array,
# and the kernels below take their arguments one by one, because a tuple makes every call of a kernel slow.
Fades = NDArray[np.int64]
_OLD_GIVEN, _NEW_GIVEN, _FADE_ROWS, _ROWS_BEFORE, _NEW_BEFORE, _CURVE, _NEXT_FIRST, _NEXT_ROWS, _NEXT_CURVE = range(9)


@formula
def _not_old(num_rows: int, fades: Fades, table: CurveTable) -> np.int64:
    """How many of a stage's first rows the old mixture does not give; each row adds 0 or 1."""
    since_its_start = num_rows + fades[_ROWS_BEFORE]
    return np.int64(new_rows(since_its_start, fades[_FADE_ROWS], fades[_CURVE], table) - fades[_NEW_BEFORE])


@formula
def _of_next(num_rows: int, fades: Fades, table: CurveTable) -> np.int64:
    """How many of a stage's first rows the next stage's mixture gives; each row adds 0 or 1."""
    past = num_rows - fades[_NEXT_FIRST]
    if past <= 0:
        return np.int64(0)
    return new_rows(past, fades[_NEXT_ROWS], fades[_NEXT_CURVE], table)


@compiled
def _start(nodes: Nodes, rows: int | np.int64, num_sources: int) -> NDArray[np.int64]:
    """What each node carries after a tree's first rows: (2 m p + q) mod 2 q of the m rows it has seen."""
    seen, _ = _spread(nodes, rows, num_sources)
    p, q = nodes[:, _P], nodes[:, _Q]
    return (2 * (seen % q) * p + q) % (2 * q)


@compiled
def _next_source(nodes: Nodes, carried: NDArray[np.int64]) -> np.int64:
    """The source of a tree's next row. A node adds 2 p to what it carries, and sends the row to its left when
    that reaches 2 q: `_to_left` one row further, without a division.
    """
    node = np.int64(0)
    while node >= 0:
        sum_carried = carried[node] + 2 * nodes[node, _P]
        to_left = sum_carried >= 2 * nodes[node, _Q]
        carried[node] = sum_carried - 2 * nodes[node, _Q] if to_left else sum_carried
        node = nodes[node, _LEFT] if to_left else nodes[node, _RIGHT]
    return ~node


@formula
def _count(
    new: Nodes,
    old: Nodes,
    following: Nodes,
    fades: Fades,
    table: CurveTable,
    next_table: CurveTable,
    num_sources: int,
    num_rows: int,
) -> NDArray[np.int64]:
    """How many of a stage's first rows each source gives."""
    not_old, of_next = _not_old(num_rows, fades, table), _of_next(num_rows, fades, next_table)
    _, counts = _spread(new, fades[_NEW_GIVEN] + not_old - of_next, num_sources)
    if fades[_NEW_GIVEN]:
        counts -= _spread(new, fades[_NEW_GIVEN], num_sources)[1]
    if not_old < num_rows:
        _, before = _spread(old, fades[_OLD_GIVEN], num_sources)
        _, after = _spread(old, fades[_OLD_GIVEN] + (num_rows - not_old), num_sources)
        counts += after - before
    if of_next:
        counts += _spread(following, of_next, num_sources)[1]
    return counts


@compiled
def _deal(
    new: Nodes,
    old: Nodes,
    following: Nodes,
    fades: Fades,
    table: CurveTable,
    next_table: CurveTable,
    num_sources: int,
    first: int,
    num_rows: int,
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Each row's source and its row within that: counts and trees, as they are before the first row, go along."""
    sources, source_rows = np.empty(num_rows, np.int32), np.empty(num_rows, np.int64)
    counts = _count(new, old, following, fades, table, next_table, num_sources, first)
    not_old, of_next = _not_old(first, fades, table), _of_next(first, fades, next_table)
    new_carried = _start(new, fades[_NEW_GIVEN] + not_old - of_next, num_sources)
    old_carried = _start(old, fades[_OLD_GIVEN] + first - not_old, num_sources)
    next_carried = _start(following, of_next, num_sources)
    for place in range(num_rows):
        not_old_then = _not_old(first + place + 1, fades, table)
        of_next_then = _of_next(first + place + 1, fades, next_table)
        if not_old_then == not_old:
            source = _next_source(old, old_carried)
        elif of_next_then > of_next:
            source = _next_source(following, next_carried)
        else:
            source = _next_source(new, new_carried)
        sources[place] = source
        source_rows[place] = counts[source]
        counts[source] += 1
        not_old, of_next = not_old_then, of_next_then
    return sources, source_rows


@dataclass(frozen=True, slots=True)
class Fade:
    """A fade's length in rows, how many of them the stage before has, and its curve."""

    rows: int
    before: int = 0
    shape: Shape = "linear"
    steepness: float = STEEPNESS

    def __post_init__(self) -> None:
        if not 0 <= self.rows <= MAX_FADE_ROWS:
            raise ValueError(f"fade: {self.rows:,} rows is not within 0 to {MAX_FADE_ROWS:,}. Shorten it.")

    def __str__(self) -> str:
        """`20 rows, cosine`, as a record has it."""
        shape = f"sigmoid of {self.steepness:g}" if self.shape == "sigmoid" else self.shape
        return f"{self.rows} rows, {shape}" + (", centred" if self.before else "")


NO_FADE = Fade(0)


@dataclass(frozen=True, slots=True)
class FadeOut:
    """The next stage's mixture, which begins to fade in at a row of this stage; the fade goes on in the next stage."""

    mixture: Mixture
    first: int
    fade: Fade


@dataclass(frozen=True, slots=True)
class StageMixture:
    """A stage's mixture, faded in from the old stage's if it has a fade, and out where the next one's fade is centred.

    Row n comes from the new mixture where `new_rows` grows, from the old one, which continues after the `old_rows` it
    gave in its own stage, or from the next stage's. `names` are those of all, sorted; a source is its index there,
    and its rows are counted within this stage, from all mixtures together. `StageMixture(mixture)` is a
    stage without a fade. A fade may be longer than its stage; the next stage fades from the new mixture. Of a centred
    fade the stage before has given `new_given` rows of the new mixture.
    """

    new: Mixture
    old: Mixture | None = None
    old_rows: int = 0
    fade: Fade = NO_FADE
    new_given: int = 0
    out: FadeOut | None = None
    names: tuple[str, ...] = field(init=False)
    _trees: tuple[Nodes, Nodes, Nodes, Fades, CurveTable, CurveTable, int] = field(
        init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        if self.fade.rows and self.old is None:
            raise ValueError("fade: the first stage has no mixture to fade from. Remove its fade.")
        old = self.old or self.new
        out = self.out or FadeOut(self.new, MAX_ROWS, NO_FADE)
        names = tuple(sorted({*self.new.names, *old.names, *out.mixture.names}))
        tables = tuple(curve_table(each.shape, each.steepness) for each in (self.fade, out.fade))
        curve = curve_number(self.fade.shape)
        before = new_rows(self.fade.before, self.fade.rows, curve, tables[0])
        fade_in = self.old_rows, self.new_given, self.fade.rows, self.fade.before, before, curve
        fades = np.array([*fade_in, out.first, out.fade.rows, curve_number(out.fade.shape)], np.int64)
        trees = (_renumbered(mixture, names) for mixture in (self.new, old, out.mixture))
        set_field = object.__setattr__
        set_field(self, "names", names)
        set_field(self, "_trees", (*trees, fades, *tables, len(names)))

    def new_rows(self, num_rows: int) -> int:
        """How many rows the new mixture has given after the first rows: at the end, the next one's `old_rows`."""
        assert 0 <= num_rows <= MAX_ROWS, num_rows
        _, _, _, fades, table, next_table, _ = self._trees
        return int(self.new_given + _not_old(num_rows, fades, table) - _of_next(num_rows, fades, next_table))

    def next_rows(self, num_rows: int) -> int:
        """How many of the first rows the next stage's mixture gives: at the stage's end, the next one's `new_given`."""
        _, _, _, fades, _, next_table, _ = self._trees
        return int(_of_next(num_rows, fades, next_table))

    def count(self, num_rows: int) -> NDArray[np.int64]:
        """How many of the first rows each source gives."""
        # Python counts a few sources in the time that a plan would otherwise wait for numba to be imported.
        count = _count if len(self.names) <= FEW_SOURCES else kernel_of(_count)
        return count(*self._trees, num_rows)

    def deal(self, first: int, count: int) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """For `count` rows from the first one on: the source of each, and how many rows of it the stage gave before."""
        return _deal(*self._trees, first, count)

    def first_row_reaching(self, source: str, rows: int) -> int | None:
        """The smallest number of rows among which the source has given `rows`; None if it never does."""
        index = self.names.index(source)
        if self.count(MAX_ROWS)[index] < rows:
            return None
        return bisect_left(range(MAX_ROWS), rows, key=lambda num_rows: int(self.count(num_rows)[index]))


def _renumbered(mixture: Mixture, names: tuple[str, ...]) -> Nodes:
    """A mixture's nodes, with sources numbered as among these names."""
    number_of = {name: number for number, name in enumerate(names)}
    numbers = np.array([number_of[name] for name in mixture.names])
    nodes = mixture.nodes.copy()
    children = nodes[:, _LEFT:]
    children[children < 0] = ~numbers[~children[children < 0]]
    return nodes

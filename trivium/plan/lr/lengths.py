"""Extents of a learning rate's shape -> steps, or why they do not fit the span that the shape has."""

from collections.abc import Callable
from fractions import Fraction
from itertools import pairwise

from trivium.config.fields import Extent
from trivium.config.rates import ENDLESS, Cycle, Extend, LrPoint, Schedule, StageLr
from trivium.errors import Problem
from trivium.plan.lr.curve import exact
from trivium.plan.lr.shapes import Extension, Lengths, PlacedPoint

DEFAULT_DECAY = 0.2
MOST_CYCLES = 1000  # each is an entry of the record
StepsForTokens = Callable[[int], int]


def resolve(extent: Extent | None, span: int, steps_for_tokens: StepsForTokens) -> int:
    """An extent in steps; tokens are rounded up, a fraction to the nearest step."""
    if extent is None:
        return 0
    if extent.steps is not None:
        return extent.steps
    if extent.tokens is not None:
        return steps_for_tokens(extent.tokens)
    assert extent.fraction is not None, "an extent has one unit"
    return int(exact(extent.fraction) * span + Fraction(1, 2))


def needs_length(schedule: Schedule) -> bool:
    """Whether a schedule without a horizon depends on how long the run is."""
    if schedule.points:
        return False
    extents = (schedule.warmup, schedule.half_life)
    return schedule.shape not in ENDLESS or any(each is not None and each.fraction is not None for each in extents)


def lengths_of(
    path: str, shaped: Schedule | StageLr, span: int, steps_for_tokens: StepsForTokens
) -> tuple[Lengths, list[Problem]]:
    """A shape's lengths in steps; with problems, lengths that fit instead."""
    if shaped.points:
        return _placed(path, shaped.points, span, steps_for_tokens)
    rise, fall = resolve(shaped.warmup, span, steps_for_tokens), _decay_steps(shaped, span, steps_for_tokens)
    problems: list[Problem] = []
    room, there = span, "there are"
    if shaped.cycle is not None:
        problems += _too_many(path, shaped.cycle, span)
        room, there = shaped.cycle.steps or 0, "of a cycle"
    bounded = shaped.shape not in ENDLESS or path != "schedule"
    if bounded and rise + fall > room:
        parts = f"a warm-up of {rise:,}" + (f" and a decay of {fall:,}" if fall else "")
        what = f"{parts} steps {'are' if fall else 'is'} longer than the {room:,} steps {there}. Shorten it."
        problems.append(Problem(path, what))
    half_life = resolve(shaped.half_life, span, steps_for_tokens)
    if shaped.half_life is not None and not half_life:
        what = f"is less than half a step of the {span:,} there are. Write half_life = {{ steps = 1 }} or more."
        problems.append(Problem(f"{path}.half_life", what))
    if problems:
        return Lengths(span), problems
    return Lengths(span, rise, fall, shaped.warmup_from, max(1, half_life)), problems


def _decay_steps(shaped: Schedule | StageLr, span: int, steps_for_tokens: StepsForTokens) -> int:
    """The steps of a wsd's decay, or of that of each of its cycles; no other shape has one."""
    if shaped.shape != "wsd":
        return 0
    if shaped.cycle is not None:
        return shaped.cycle.decay or 0
    return resolve(shaped.decay or Extent(fraction=DEFAULT_DECAY), span, steps_for_tokens)


def _too_many(path: str, cycle: Cycle, span: int) -> list[Problem]:
    """A record has an entry for every cycle."""
    if span <= MOST_CYCLES * (cycle.steps or 1):
        return []
    what = f"makes {span // (cycle.steps or 1):,} cycles of {span:,} steps, over the {MOST_CYCLES:,} that there may be"
    return [Problem(f"{path}.cycle.steps", f"{what}. Write {-(-span // MOST_CYCLES):,} or more.")]


def _placed(
    path: str, points: tuple[LrPoint, ...], span: int, steps_for_tokens: StepsForTokens
) -> tuple[Lengths, list[Problem]]:
    """Points at steps, in order; those of a stage within it."""
    placed = []
    for asked in points:
        step = asked.steps if asked.tokens is None else steps_for_tokens(asked.tokens)
        placed.append(PlacedPoint(step or 0, exact(asked.lr or 0.0), asked.shape))
    problems = []
    for number, (before, point) in enumerate(pairwise(placed), 1):
        if point.step < before.step:
            what = (
                f"is at step {point.step:,}, before the one ahead of it, at step {before.step:,}. Write them in order."
            )
            problems.append(Problem(f"{path}.points[{number}]", what))
        elif path != "schedule" and point.step > span:
            what = f"is at step {point.step:,} of a stage that has {span:,}. Leave it out, or lengthen the stage."
            problems.append(Problem(f"{path}.points[{number}]", what))
    return Lengths(span) if problems else Lengths(span, points=tuple(placed)), problems


def extension_of(
    extend: Extend, horizon: int, steps_for_tokens: StepsForTokens
) -> tuple[Extension | None, list[Problem]]:
    """An extension in steps: it begins before the schedule ends, and ends after it has begun."""
    at, end = (resolve(extent, 0, steps_for_tokens) for extent in (extend.at, extend.to))
    problems = []
    if at >= horizon:
        what = f"is step {at:,}, and the schedule ends at step {horizon:,}: there is nothing left to stretch"
        problems.append(Problem("schedule.extend.at", f"{what}. Write an earlier one."))
    if end <= at:
        what = f"is step {end:,}, not after step {at:,}, where the extension begins. Write a later one."
        problems.append(Problem("schedule.extend.to", what))
    return None if problems else Extension(at, end), problems

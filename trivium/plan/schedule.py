"""Step -> learning rate and momentum.

The learning rate is a multiplier of `optimizer.lr`. The run's schedule spans its horizon; a stage may
scale it, warm it up again, or put a shape of its own in its place. `step` counts completed updates, so
the first update of a warm-up over w steps has multiplier 1/w and the last one 1. With `warmup_from` the first one has
that multiplier, and the one after the warm-up is the first with 1.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from trivium.config.fields import Extent
from trivium.config.optimizer import Momentum
from trivium.config.schema import Schedule
from trivium.config.stages import DecayShape, Shape, StageLr
from trivium.plan.curve import ONE, Curve, CurvePiece, Formula, constant, exact, joined

DEFAULT_DECAY = 0.2


@dataclass(frozen=True, slots=True)
class Lengths:
    """A shape's lengths in steps, once extents are resolved."""

    span: int
    warmup: int = 0
    decay: int = 0
    warmup_from: float | None = None  # the warm-up's first multiplier; None: one step above zero


@dataclass(frozen=True, slots=True)
class StageSpan:
    """A stage's steps and what it does to the learning rate."""

    start: int
    end: int
    lr: StageLr | None
    lengths: Lengths
    resets: bool  # the optimizer's state starts fresh
    momentum: Momentum | None = None  # of its optimizer; None: the run's


def shape_pieces(
    shape: Shape, decay_shape: DecayShape, to: float, lengths: Lengths, start: int, scale: Fraction
) -> list[CurvePiece]:
    """The pieces of one shape from `start` on; after its span it stays where it ended."""
    end, warm = start + lengths.span, start + lengths.warmup
    last = exact(to)
    pieces: list[CurvePiece] = []
    if lengths.warmup:
        pieces.append(CurvePiece(start, _rise(lengths, start)))
    match shape:
        case "constant":
            pieces.append(CurvePiece(warm, constant(ONE)))
        case "inverse-sqrt":
            pieces.append(CurvePiece(warm, Formula("inverse-sqrt", ONE, ONE, start - 1, max(1, lengths.warmup))))
        case "linear" | "cosine":
            if end > warm:
                pieces.append(CurvePiece(warm, Formula(shape, ONE, last, warm, end - warm)))
            pieces.append(CurvePiece(max(end, warm), constant(last)))
        case "wsd":
            fall = end - lengths.decay
            if fall > warm:
                pieces.append(CurvePiece(warm, constant(ONE)))
            if lengths.decay:
                pieces.append(CurvePiece(fall, Formula(decay_shape, ONE, last, fall, lengths.decay)))
            pieces.append(CurvePiece(end, constant(last)))
    return [CurvePiece(piece.start, piece.formula.scaled(scale)) for piece in pieces]


def learning_rate(schedule: Schedule, lengths: Lengths, stages: Sequence[StageSpan]) -> Curve:
    """The multiplier of `optimizer.lr` at every step of the run."""
    run = joined(shape_pieces(schedule.shape, schedule.decay_shape, schedule.to, lengths, 0, ONE))
    pieces: list[CurvePiece] = []
    for stage in stages:
        pieces.extend(_stage_pieces(run, stage))
    return joined(pieces)


def _stage_pieces(run: Curve, stage: StageSpan) -> list[CurvePiece]:
    if stage.lr is None:
        return run.between(stage.start, stage.end)
    scale = exact(stage.lr.scale)
    if stage.lr.shape is not None:
        own = joined(shape_pieces(stage.lr.shape, stage.lr.decay_shape, stage.lr.to, stage.lengths, stage.start, scale))
        return own.until(stage.end)
    scaled = [CurvePiece(piece.start, piece.formula.scaled(scale)) for piece in run.between(stage.start, stage.end)]
    return [piece for piece in _ramped(scaled, stage.start, stage.lengths) if piece.start < stage.end]


def _rise(lengths: Lengths, start: int) -> Formula:
    """A warm-up from `start` on."""
    if lengths.warmup_from is not None:
        return Formula("linear", exact(lengths.warmup_from), ONE, start, lengths.warmup)
    # Origin one step early: update 0 of w has 1/w, update w - 1 has 1.
    return Formula("linear", Fraction(0), ONE, start - 1, lengths.warmup)


def _ramped(pieces: list[CurvePiece], start: int, lengths: Lengths) -> list[CurvePiece]:
    """The same pieces, rising over the first steps."""
    if not lengths.warmup or (lengths.warmup == 1 and lengths.warmup_from is None):  # which is over with its step
        return pieces
    ramp = _rise(lengths, start)
    end = start + lengths.warmup
    rising = [CurvePiece(piece.start, piece.formula, ramp) for piece in pieces if piece.start < end]
    after = [piece for piece in pieces if piece.start >= end]
    if not after or after[0].start > end:
        after.insert(0, CurvePiece(end, rising[-1].formula))
    return [*rising, *after]


def momentum(settings: Momentum, stages: Sequence[StageSpan], *, warm: bool = False) -> Curve:
    """Muon's momentum at every step; the warm-up begins again where the optimizer is reset.

    A stage may have its own. An optimizer that starts warm, with the state of another run's, has its warm-up behind it.
    """
    begin, curve = 0, _momentum_from(0, settings, warm=warm)
    pieces: list[CurvePiece] = []
    for stage in stages:
        begin = stage.start if stage.resets else begin
        pieces = [piece for piece in pieces if piece.start < stage.start]
        curve = _momentum_from(begin, stage.momentum or settings, warm=warm and begin == 0)
        pieces.extend(curve.from_step(stage.start))
    return joined(pieces) if pieces else curve


def _momentum_from(begin: int, settings: Momentum, *, warm: bool) -> Curve:
    """The momentum of an optimizer that began at a step."""
    first, last = exact(settings.start), exact(settings.end)
    steps = 0 if warm else settings.steps
    rise = [CurvePiece(begin, Formula("linear", first, last, begin, steps))] if steps else []
    return joined([*rise, CurvePiece(begin + steps, constant(last))])


def resolve(extent: Extent | None, span: int, steps_for_tokens: Callable[[int], int]) -> int:
    """An extent in steps; tokens are rounded up, a fraction to the nearest step."""
    if extent is None:
        return 0
    if extent.steps is not None:
        return extent.steps
    if extent.tokens is not None:
        return steps_for_tokens(extent.tokens)
    assert extent.fraction is not None, "an extent has one unit"
    return int(exact(extent.fraction) * span + Fraction(1, 2))

"""Step -> learning rate and momentum.

The learning rate is a multiplier of `optimizer.lr`. The run's schedule spans its horizon; a stage may
scale it, group by group, warm it up again, or put a curve of its own in its place, which may start where the stage
before it stands. A stage that ended on a figure takes the rest of its steps out of the schedule: the stages after it
have the rates of the places that they had without that. `step` counts completed updates, so
the first update of a warm-up over w steps has multiplier 1/w and the last one 1. With `warmup_from` the first one has
that multiplier, and the one after the warm-up is the first with 1.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from trivium.config.optimizer import Momentum
from trivium.config.rates import Schedule, StageLr
from trivium.plan.lr.curve import ONE, Curve, CurvePiece, Formula, constant, exact, joined, stretched
from trivium.plan.lr.shapes import Lengths, shape_pieces, warmup_formula


@dataclass(frozen=True, slots=True)
class StageSpan:
    """A stage's steps and what it does to the learning rate."""

    start: int
    end: int
    lr: StageLr | None
    lengths: Lengths
    resets: bool  # the optimizer's state starts fresh
    momentum: Momentum | None = None  # of its optimizer; None: the run's
    left_out: int = 0  # steps before it that stages did not take, since they ended on a figure


def learning_rate(schedule: Schedule, lengths: Lengths, stages: Sequence[StageSpan], group: str) -> Curve:
    """The multiplier of a group's peak at every step of the run."""
    pieces = shape_pieces(schedule, lengths, 0, ONE)
    if lengths.extension is not None:
        pieces = stretched(pieces, lengths.extension.at, lengths.span, lengths.extension.end)
    run = before = joined(pieces)
    found: list[CurvePiece] = []
    for stage in stages:
        before = _stage_curve(run.moved(-stage.left_out), before, stage, group)
        found.extend(before.between(stage.start, stage.end))
    return joined(found)


def _stage_curve(run: Curve, before: Curve, stage: StageSpan, group: str) -> Curve:
    """The curve that a stage follows from its start on; `before` is that of the stage before it."""
    if stage.lr is None:
        return run
    scale = exact(stage.lr.scale.of(group))
    if stage.lr.shape is None and not stage.lr.points:
        scaled = [piece.scaled(scale) for piece in run.between(stage.start)]
        return joined(_ramped(scaled, stage.start, stage.lengths))
    height = ONE if stage.lr.start is None else before.value_at(stage.start)
    return joined(shape_pieces(stage.lr, stage.lengths, stage.start, height * scale))


def _ramped(pieces: list[CurvePiece], start: int, lengths: Lengths) -> list[CurvePiece]:
    """The same pieces, rising over the first steps."""
    if not lengths.warmup or (lengths.warmup == 1 and lengths.warmup_from is None):  # which is over with its step
        return pieces
    ramp = warmup_formula(lengths, start)
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
        pieces.extend(curve.between(stage.start))
    return joined(pieces) if pieces else curve


def _momentum_from(begin: int, settings: Momentum, *, warm: bool) -> Curve:
    """The momentum of an optimizer that began at a step."""
    first, last = exact(settings.start), exact(settings.end)
    steps = 0 if warm else settings.steps
    rise = [CurvePiece(begin, Formula("linear", first, last, begin, steps))] if steps else []
    return joined([*rise, CurvePiece(begin + steps, constant(last))])

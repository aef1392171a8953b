"""Learning rates in words, where a first and a last value do not tell the curve between them."""

from trivium.config.fields import Extent
from trivium.config.numbers import show_count
from trivium.config.rates import GroupScale, LrPoint, Schedule, StageLr
from trivium.plan.plan import Plan
from trivium.plan.rates import GROUPS


def rate_lines(plan: Plan) -> list[str]:
    """`schedule: cosine, stretched after 596,047 steps to end at 7T tokens`; `cool: linear, from where it stands`."""
    schedule = plan.config.schedule
    parts = curve_parts(schedule)
    if schedule.extend is not None:
        after, end = extent_words(schedule.extend.at), extent_words(schedule.extend.to)
        parts.append(f"stretched after {after} to end at {end}")
    lines = [f"schedule: {', '.join([*shape_words(schedule), *parts])}"] if parts else []
    for stage in plan.stages:
        lr = stage.config.lr
        if lr is not None and (parts := [*curve_parts(lr), *_stage_parts(lr)]):
            lines.append(f"{stage.name}: learning rate {', '.join([*shape_words(lr), *parts])}")
    return lines


def shape_words(table: Schedule | StageLr) -> list[str]:
    """The shape's name; of a wsd also its decay's. Points have none."""
    if table.points or table.shape is None:
        return []
    return [f"wsd ({table.decay_shape})" if table.shape == "wsd" else table.shape]


def curve_parts(table: Schedule | StageLr) -> list[str]:
    """What a curve has beside a shape's name: points, cycles, a half-life, an exponent."""
    parts = []
    if table.points:
        parts.append(f"points {', '.join(map(point_words, table.points))}")
    if table.cycle is not None:
        again = f", then a rise over {table.cycle.warmup:,}" if table.cycle.warmup else ""
        parts.append(f"a decay over the last {table.cycle.decay:,} of every {table.cycle.steps:,} steps{again}")
    if table.half_life is not None:
        parts.append(f"half in {extent_words(table.half_life)}")
    if table.exponent is not None:
        parts.append(f"exponent {table.exponent:g}")
    return parts


def _stage_parts(lr: StageLr) -> list[str]:
    parts = [] if lr.start is None else ["from where it stands"]
    if len({lr.scale.of(group) for group in GROUPS}) > 1:
        parts.append(scale_words(lr.scale))
    return parts


def scale_words(scale: GroupScale) -> str:
    """`matrix x 0.5, embedding x 0.1, unembedding x 1, rest x 1`."""
    return ", ".join(f"{group} x {scale.of(group):g}" for group in GROUPS)


def point_words(point: LrPoint) -> str:
    """`0.55 at 5T tokens`."""
    place = extent_words(Extent.model_construct(steps=point.steps, tokens=point.tokens))
    return f"{point.lr:g} at {place}{' (cosine)' if point.shape == 'cosine' else ''}"


def extent_words(extent: Extent | None) -> str:
    """`2,000 steps`, `5T tokens` or `1%`."""
    assert extent is not None, "a checked table has its extents"
    if extent.tokens is not None:
        return f"{show_count(extent.tokens)} tokens"
    return f"{extent.steps:,} steps" if extent.steps is not None else f"{100 * (extent.fraction or 0):g}%"

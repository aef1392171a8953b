"""Rules about learning rates: the run's schedule, and the curve of a stage."""

from collections.abc import Iterator

from trivium.config.keys import Path, listed, look_up
from trivium.config.numbers import show_count
from trivium.config.problems import show_value
from trivium.config.rates import ENDLESS, Cycle, Extend, LrPoint, Schedule, StageLr
from trivium.config.rules.view import Finding, View

# Keys of a shape, which points leave no room for.
SHAPE_KEYS = ("shape", "warmup", "warmup_from", "decay", "decay_shape", "exponent", "half_life", "to", "cycle")


def schedule_rules(view: View) -> Iterator[Finding]:
    """The run's schedule has the keys of its shape, and a horizon where it is extended."""
    schedule, path = view.config.schedule, ("schedule",)
    yield from curve_rules(view, path, schedule)
    yield from view.extent_rules(("schedule", "horizon"), schedule.horizon, fraction=False)
    if schedule.horizon is not None and schedule.horizon.steps == 0:
        what = "is { steps = 0 }: there is nothing to schedule. Write horizon = { steps = 2000 }, or leave it out."
        yield view.problem(("schedule", "horizon"), what)
    if view.given("schedule", "cycle") and view.given("schedule", "horizon"):
        what = "is given with cycle: cycles follow one another to the run's end. Leave one of the two out."
        yield view.problem(("schedule", "horizon"), what)
    if schedule.extend is not None:
        yield from _extend_rules(view, schedule, schedule.extend)


def _extend_rules(view: View, schedule: Schedule, extend: Extend) -> Iterator[Finding]:
    """What is stretched has an end, which is given; so are the place from where on, and the new end."""
    path = ("schedule", "extend")
    if view.given("schedule", "points"):
        yield view.problem(path, "is given with points. Write the new ones among them, and leave it out.")
    elif schedule.shape in ENDLESS or schedule.cycle is not None:
        kind = "cycle" if schedule.cycle is not None else f"shape = {show_value(schedule.shape)}"
        yield view.problem(path, f"needs a schedule that ends, and one with {kind} does not. Leave it out.")
    elif view.absent("schedule", "horizon"):
        what = "needs horizon, the span that the steps before it were taken under"
        yield view.problem(path, f'{what}. Write horizon = {{ tokens = "5T" }} too.')
    for key, example in (("at", "{ steps = 597046 }"), ("to", '{ tokens = "7T" }')):
        yield from view.extent_rules((*path, key), getattr(extend, key), fraction=False)
        if view.absent(*path, key):
            yield view.problem((*path, key), f"is missing. Write {key} = {example}.")


def lr_rules(view: View) -> Iterator[Finding]:
    """A stage's own learning rate has only the keys of its shape, and something before it to start from."""
    for number, stage in enumerate(view.stages):
        if stage.lr is None:
            continue
        path = view.stage_path(number, "lr")
        yield from stage_lr_rules(view, path, stage.lr)
        if number == 0 and stage.lr.start is not None:
            what = "is given for the first stage, which has none before it. Leave it out: optimizer.lr is its start."
            yield view.problem((*path, "from"), what)


def stage_lr_rules(view: View, path: Path, lr: StageLr) -> Iterator[Finding]:
    """The rules of one stage's learning rate, wherever it is in the run."""
    yield from curve_rules(view, path, lr)
    if look_up(view.raw, (*path, "scale")) == {}:
        yield view.problem((*path, "scale"), "is empty. Write scale = 0.5, or scale = { matrix = 0.5 }.")
    if lr.start is not None and view.absent(*path, "shape") and view.absent(*path, "points"):
        what = 'needs a curve that starts there. Write shape = "linear" too, or shape = "constant".'
        yield view.problem((*path, "from"), what)


def curve_rules(view: View, path: Path, table: Schedule | StageLr) -> Iterator[Finding]:
    """Of the run's schedule and of a stage's own curve: lengths are given once, and where the shape has them."""
    for key in ("warmup", "decay", "half_life"):
        yield from view.extent_rules((*path, key), getattr(table, key))
    if look_up(view.raw, (*path, "shape"), table.shape) != table.shape:
        return  # no shape at all, which was reported already
    if view.given(*path, "points"):
        yield from _points_alone(view, path)
        yield from _point_rules(view, (*path, "points"), table.points)
        return
    yield from _decay_keys(view, path, table)
    yield from _form_keys(view, path, table)
    yield from _warmup_keys(view, path, table)


def _decay_keys(view: View, path: Path, table: Schedule | StageLr) -> Iterator[Finding]:
    """A decay and cycles are wsd's."""
    if table.shape != "wsd":
        for key in ("decay", "decay_shape", "cycle"):
            if view.given(*path, key):
                now = f"the shape is {show_value(table.shape)}" if table.shape else "no shape is given"
                what = f'belongs to shape = "wsd", but {now}. Leave it out, or write shape = "wsd".'
                yield view.problem((*path, key), what)
    elif table.cycle is not None:
        yield from _cycle_rules(view, (*path, "cycle"), table.cycle)
        if view.given(*path, "decay"):
            what = "is given with cycle, which has a decay of its own: cycle.decay. Leave it out."
            yield view.problem((*path, "decay"), what)


def _cycle_rules(view: View, path: Path, cycle: Cycle) -> Iterator[Finding]:
    for key, example in (("steps", 20_000), ("decay", 2000)):
        if view.absent(*path, key):
            yield view.problem((*path, key), f"is missing. Write {key} = {example}.")
    if cycle.steps is not None and cycle.decay is not None and cycle.warmup + cycle.decay > cycle.steps:
        rise = f"a rise of {cycle.warmup:,} and " if cycle.warmup else ""
        what = f"has {rise}a decay of {cycle.decay:,} steps in a cycle of {cycle.steps:,}. Lower one of them."
        yield view.problem(path, what)


def _form_keys(view: View, path: Path, table: Schedule | StageLr) -> Iterator[Finding]:
    """What the form of a fall needs: a half-life, an exponent, an end."""
    key, form = ("decay_shape", table.decay_shape) if table.shape == "wsd" else ("shape", table.shape)
    for needed, of, example in (("half_life", "exponential", "{ steps = 5000 }"), ("exponent", "power", "2.0")):
        if form == of and view.absent(*path, needed):
            yield view.problem((*path, needed), f'is missing: {key} = "{of}" needs it. Write {needed} = {example}.')
        elif form != of and view.given(*path, needed):
            now = f"{key} = {show_value(form)}" if form else "a stage without a shape"
            yield view.problem((*path, needed), f'has no meaning with {now}. Leave it out, or write {key} = "{of}".')
    if table.half_life is not None and 0 in (table.half_life.steps, table.half_life.fraction):
        yield view.problem((*path, "half_life"), "is zero. Write half_life = { steps = 5000 }.")
    if form in (None, *ENDLESS) and view.given(*path, "to"):
        now = f"{key} = {show_value(form)}" if form else "a stage without a shape"
        what = f'has no meaning with {now}. Leave it out, or write {key} = "linear".'
        yield view.problem((*path, "to"), what)


def _warmup_keys(view: View, path: Path, table: Schedule | StageLr) -> Iterator[Finding]:
    """A warm-up that others begin in, or fall from, is there."""
    warmup = table.warmup
    if view.given(*path, "warmup_from") and view.absent(*path, "warmup"):
        what = "needs a warm-up to be the start of. Write warmup = { steps = 2000 } too, or leave it out."
        yield view.problem((*path, "warmup_from"), what)
    if table.shape == "inverse-sqrt" and view.absent(*path, "warmup"):
        what = "is missing: inverse-sqrt falls from the end of its warm-up. Write warmup = { steps = 2000 }."
        yield view.problem((*path, "warmup"), what)
    if table.shape == "inverse-sqrt" and warmup is not None and 0 in (warmup.steps, warmup.fraction):
        what = "is zero: inverse-sqrt falls from the end of its warm-up. Write warmup = { steps = 2000 }."
        yield view.problem((*path, "warmup"), what)


def _points_alone(view: View, path: Path) -> Iterator[Finding]:
    """Points are the whole curve."""
    for key in (*SHAPE_KEYS, *(("horizon",) if path == ("schedule",) else ())):
        if view.given(*path, key):
            what = "is given with points, which are the whole curve. Leave one of the two out."
            yield view.problem((*path, key), what)


def _point_rules(view: View, path: Path, points: tuple[LrPoint, ...]) -> Iterator[Finding]:
    """Points begin at 0 and are in order, at most two at one place; the plan orders steps among tokens."""
    if look_up(view.raw, path) == []:
        yield view.problem(path, "is empty. Write points = [{ steps = 0, lr = 1.0 }, { steps = 2000, lr = 0.1 }].")
    places: dict[str, list[int]] = {"steps": [], "tokens": []}
    for number, point in enumerate(points):
        here = (*path, number)
        if view.absent(*here, "lr"):
            yield view.problem(
                (*here, "lr"), "is missing: the learning rate as a multiple of the peak. Write lr = 1.0."
            )
        given = [unit for unit in places if view.given(*here, unit)]
        if len(given) != 1:
            found = f"has {listed(given)}" if given else "has no place"
            yield view.problem(
                here, f"{found}, but needs exactly one of steps and tokens. Write {{ steps = 2000, lr = 1.0 }}."
            )
            continue
        place: int | None = getattr(point, given[0])
        if place is None:
            continue
        before = places[given[0]]
        if number == 0 and place:
            what = f"is at {show_count(place)} {given[0]}, and the curve begins at 0"
            yield view.problem(here, f"{what}. Write {{ steps = 0, lr = 1.0 }} before it.")
        if before and place < before[-1]:
            what = f"is at {place:,} {given[0]}, before the one ahead of it, at {before[-1]:,}. Write them in order."
            yield view.problem(here, what)
        elif before[-2:] == [place, place]:
            yield view.problem(here, f"is the third at {place:,} {given[0]}: two make a jump. Leave one out.")
        before.append(place)

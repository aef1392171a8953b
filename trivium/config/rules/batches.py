"""Rules about batch sizes: given once, in whole rows; a ramp has all of its keys, and goes up by equal increments."""

from collections.abc import Iterator
from math import gcd

from trivium.config.batches import MOST_SIZES, Batches
from trivium.config.keys import Path, listed
from trivium.config.problems import show_value
from trivium.config.rules.view import Finding, View, one_way
from trivium.config.stages import BatchSize, Stage

BATCH_SIZES = ("batch_size", "batch_tokens")
RAMP_KEYS = {"first": "from", "to": "to", "over": "over", "by": "by"}
SIZES = ("size", "first", "to", "by")  # keys that are a number of rows, or of tokens
EXAMPLES = {
    "batch_size": '{ from = 3072, to = 15360, over = "469B", by = 256 }',
    "batch_tokens": '{ from = "16Mi", to = "64Mi", over = "500B", by = "1Mi" }',
}


def known_batches(view: View, number: int) -> Batches | None:
    """The rows of a stage's steps; None where its row length or batch size is at fault."""
    if view.unsound(number, "seq_len", *BATCH_SIZES):
        return None
    path, given = _given(view, number, view.stages[number])
    is_sound = not list(_ramp_rules(view, path, given)) and _has_whole_keys(view, path, given)
    return view.stages[number].batches if is_sound else None


def batch_rules(view: View) -> Iterator[Finding]:
    """A batch size is given once, is whole rows, and goes up by equal increments where it is a ramp."""
    yield from one_way(view, ("defaults",), BATCH_SIZES)
    for number, stage in enumerate(view.stages):
        yield from one_way(view, ("stages", number), BATCH_SIZES)
        path, given = _given(view, number, stage)
        yield from _ramp_rules(view, path, given)
        if stage.batch_tokens is not None and not view.unsound(number, "seq_len"):
            yield from _whole_row_rules(view, path, given, stage.seq_len)


def _given(view: View, number: int, stage: Stage) -> tuple[Path, BatchSize]:
    """The key that decides a stage's batch size, and its value."""
    key = "batch_size" if stage.batch_tokens is None else "batch_tokens"
    return view.stage_path(number, key), stage.batch_size if stage.batch_tokens is None else stage.batch_tokens


def _has_whole_keys(view: View, path: Path, given: BatchSize) -> bool:
    """Whether every key that was written in a batch size's table is sound."""
    fields = type(given).model_fields
    sound = {field.alias or name for name, field in fields.items() if getattr(given, name) is not None}
    return set(view.written(*path)) <= sound


def _ramp_rules(view: View, path: Path, given: BatchSize) -> Iterator[Finding]:
    """A ramp has its four keys, and reaches its end in equal increments."""
    example = f"Write {path[-1]} = {EXAMPLES[str(path[-1])]}."
    written = view.written(*path)
    missing = [key for key in RAMP_KEYS.values() if key not in written]
    if not given.is_ramp:
        if len(missing) < len(RAMP_KEYS):
            yield view.problem(path, f"has size and the keys of a ramp, but needs one of the two. {example}")
        return
    if missing:
        yield view.problem(path, f"has no {listed(missing, 'and')}. {example}")
        return
    if given.first is None or given.to is None or given.by is None or given.over is None:
        return  # what did not validate is a problem of its own
    rise = given.to - given.first
    if rise <= 0:
        what = f"is {given.to:,}, not over the {given.first:,} that the ramp starts from."
        yield view.problem((*path, "to"), f"{what} Write a larger one, or {path[-1]} = {given.first} without a ramp.")
    elif rise % given.by:
        what = f"is {given.by:,}, and from {given.first:,} to {given.to:,} are {rise:,}, which it does not divide"
        ends = [end for end in (given.to - rise % given.by, given.to + given.by - rise % given.by) if end > given.first]
        instead = " or ".join(f"to = {end}" for end in ends)
        yield view.problem((*path, "by"), f"{what}. Write by = {gcd(rise, given.by)}, or {instead}.")
    elif rise // given.by > MOST_SIZES:
        what = f"is {show_value(given.by)}, which makes {rise // given.by:,} sizes, over {MOST_SIZES:,}."
        yield view.problem((*path, "by"), f"{what} Write a larger one.")


def _whole_row_rules(view: View, path: Path, given: BatchSize, seq_len: int) -> Iterator[Finding]:
    """Tokens of a step are whole rows, at every size."""
    for name in SIZES:
        count = getattr(given, name)
        if count is None or count % seq_len == 0:
            continue
        written = [path[-1]] if name == "size" else [path[-1], RAMP_KEYS[name]]
        at = path if name == "size" and not view.written(*path) else (*path, RAMP_KEYS.get(name, name))
        rows = count / seq_len
        near = sorted({max(1, int(rows)) * seq_len, (int(rows) + 1) * seq_len})
        what = f"is {count:,}, which is {rows:.6g} rows of {seq_len:,}."
        yield view.problem(at, f"{what} Write {' or '.join(f'{written[-1]} = {each}' for each in near)}.")

"""How often stages read their sources -> what is over a cap, with the fix, what is read often without one, or twice."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from math import ceil, floor, log10

from trivium.config.numbers import show_count
from trivium.config.schema import Config
from trivium.errors import Problem
from trivium.plan.stage import PlannedStage, SourceUse
from trivium.sources.open import OpenSource

MANY_EPOCHS = 4


def epoch_problems(
    stages: Sequence[PlannedStage], config: Config, sizes: Mapping[str, int]
) -> Iterator[tuple[Problem, bool]]:
    """Caps on epochs, of a source over the run and of a stage within it: each problem, and whether it is an error."""
    for stage in stages:
        for name, use in stage.uses.items():
            if use.epochs is None or use.epochs_so_far is None or not use.rows:
                continue
            cap = config.sources[name].max_epochs
            if cap is not None and use.epochs_so_far > cap + 1e-9 >= use.epochs_so_far - use.epochs:
                yield _over(stage, name, cap, use.epochs_so_far, f"sources.{name}.max_epochs", sizes), True
            elif stage.config.max_epochs is not None and use.epochs > stage.config.max_epochs + 1e-9:
                yield _over(stage, name, stage.config.max_epochs, use.epochs, "max_epochs", sizes), True
            elif cap is None and use.epochs_so_far > MANY_EPOCHS >= use.epochs_so_far - use.epochs:
                yield _often(stage, name, use), False


def _often(stage: PlannedStage, name: str, use: SourceUse) -> Problem:
    times = f"is read {use.epochs_so_far:.1f} times by the end of this stage"
    return Problem(_share_path(stage, name), f"{times}. Set sources.{name}.max_epochs if that is meant.")


def _over(stage: PlannedStage, name: str, cap: float, epochs: float, key: str, sizes: Mapping[str, int]) -> Problem:
    use, shares = stage.uses[name], stage.shares
    assert use.epochs is not None
    assert shares is not None
    room = max(0.0, cap - (epochs - use.epochs)) / use.epochs
    share = float(shares.get(name, 0))
    lower = int(share * room * 1000) / 1000
    fix = f"Lower the share from {share:.3g} to {lower:.3g}, or set" if lower and share else "Take it out, or set"
    if share == 1 or _share_path(stage, name).endswith(f": {name}"):
        fix = f"Shorten the stage to {max(1, int((stage.steps or 1) * room)):,} steps, or set"
    needed, there = use.rows * stage.seq_len, sizes[name]
    what = (
        f"needs {show_count(needed)} tokens, the source has {show_count(there)}: "
        f"{epochs:.3g} epochs, over {key} = {cap:g}. {fix} {key} = {_rounded_up(epochs):g}."
    )
    return Problem(_share_path(stage, name), what)


def _share_path(stage: PlannedStage, name: str) -> str:
    """Where a source's share was written, or the stage where none was."""
    ways = [key for key in ("mixture", "weights", "replay") if name in (getattr(stage.config, key) or {})]
    return f"stages[{stage.index}].{ways[0]}.{name}" if ways else f"stages[{stage.index}]: {name}"


def _rounded_up(epochs: float) -> float:
    """To two digits, never below: a cap that works."""
    digits = 1 - floor(log10(epochs))
    return float(ceil(epochs * 10.0**digits - 1e-9) / 10.0**digits)


def shared_documents(stages: Sequence[PlannedStage], sources: Mapping[str, OpenSource]) -> Iterator[Problem]:
    """No document belongs to two sources of a stage: both would read it."""
    for stage in stages:
        names = () if stage.mixture is None else stage.mixture.names
        opened = {name: sources[name].blocks for name in names if name in sources}
        for (one, blocks), (other, others) in combinations(opened.items(), 2):
            if blocks.name == others.name and blocks.lengths.mask & others.lengths.mask:
                what = f"{one} and {other} share documents of {blocks.name}, which the stage would read twice."
                what = f"{what} Write views whose lengths do not overlap, or leave one of them out."
                note = " (A fade reads the stage before it too.)" if stage.config.fade is not None else ""
                yield Problem(f"stages[{stage.index}]", f"{what}{note}")

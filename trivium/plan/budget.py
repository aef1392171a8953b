"""Steps, tokens, epochs -> steps; shares as written -> exact shares."""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from trivium.config.schema import Config
from trivium.config.stages import Fade, Stage
from trivium.plan.curve import exact
from trivium.rows.mixture import Mixture, StageMixture, normalised, tempered
from trivium.sources.open import OpenSource


def steps_of(stage: Stage, mixture: StageMixture | None, rows_to_read: Mapping[str, int]) -> int | None:
    """A stage's length in steps, rounded up; None where it counts epochs of a source of unknown size.

    `rows_to_read` has, for each source that the budget counts, the rows after which it has been read that often.
    """
    if stage.steps is not None:
        return stage.steps
    if stage.tokens is not None:
        return -(-stage.tokens // stage.tokens_of_step)
    if mixture is None or not rows_to_read:
        return None
    reached = [mixture.first_row_reaching(name, rows) for name, rows in rows_to_read.items()]
    return -(-max(row for row in reached if row is not None) // stage.rows_of_step)


def own_sources(stage: Stage, config: Config) -> list[str]:
    """The sources that a stage may read apart from what it replays."""
    shares = stage.mixture if stage.mixture is not None else stage.weights
    if shares is not None:
        return list(shares)
    if stage.sources is not None:
        return list(stage.sources)
    replayed = stage.replay or {}
    return [name for name, source in config.sources.items() if not source.validation_only and name not in replayed]


def shares_of(stage: Stage, config: Config, sources: Mapping[str, OpenSource]) -> dict[str, Fraction] | None:
    """The stage's exact shares; None where they are in proportion to sizes that are not known.

    What is replayed has its share of all rows; the stage's own sources share out the rest.
    """
    own = _own_shares(stage, config, sources)
    if own is None or stage.replay is None:
        return own
    replayed = {name: exact(float(share)) for name, share in stage.replay.items()}
    rest = 1 - sum(replayed.values())
    return {name: rest * share for name, share in own.items()} | replayed


def _own_shares(stage: Stage, config: Config, sources: Mapping[str, OpenSource]) -> dict[str, Fraction] | None:
    weights = stage.mixture if stage.mixture is not None else stage.weights
    if weights is not None:
        shares = normalised({name: exact(float(weight)) for name, weight in weights.items()})
    else:
        names = own_sources(stage, config)
        if len(names) == 1:
            return {names[0]: Fraction(1)}
        if any(name not in sources for name in names):
            return None
        sizes = {name: Fraction(sources[name].tokens * config.sources[name].repeat) for name in names}
        shares = normalised(sizes)
    return shares if stage.temperature == 1 else tempered(shares, stage.temperature)


@dataclass(frozen=True, slots=True)
class Before:
    """The mixture that a fade comes from, and how many rows its tree has given."""

    mixture: Mixture
    rows: int


def mixture_of(stage: Stage, shares: Mapping[str, Fraction], before: Before | None) -> StageMixture:
    """The stage's mixture, with its fade from the one before."""
    new = Mixture.from_shares(shares)
    if stage.fade is None or before is None:
        return StageMixture(new)
    return StageMixture(new, before.mixture, before.rows, fade_rows(stage.fade, stage), stage.fade.shape)


def fade_rows(fade: Fade, stage: Stage) -> int:
    """A fade's length in rows, rounded up."""
    if fade.tokens is not None:
        return -(-fade.tokens // stage.seq_len)
    assert fade.steps is not None, "a fade has one unit"
    return fade.steps * stage.rows_of_step

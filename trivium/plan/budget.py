"""Steps, tokens, epochs -> steps; shares as written -> exact shares."""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from trivium.config.numbers import show_count
from trivium.config.schema import Config
from trivium.config.stages import Fade as FadeConfig
from trivium.config.stages import Stage
from trivium.plan.lr.curve import exact
from trivium.rows.mixture import Fade, FadeOut, Mixture, StageMixture, normalised, tempered
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
    return [name for name, source in config.sources.items() if source.is_read_by_default and name not in replayed]


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
    """The mixture that a fade comes from, and how many rows its tree and, of a centred fade, the new one have given."""

    mixture: Mixture
    rows: int
    new_rows: int = 0


@dataclass(frozen=True, slots=True)
class Following:
    """The next stage's mixture and its centred fade, which begins in the last rows of this stage."""

    shares: Mapping[str, Fraction]
    fade: FadeConfig

    def out_of(self, stage: Stage, num_rows: int) -> FadeOut:
        """The fade as a stage of `num_rows` rows sees it: the first half of it, in its own rows."""
        fade = _fade(self.fade, stage)
        first = num_rows - fade.before
        if first < 0:
            length = num_rows * stage.seq_len
            what = f"the next stage's fade begins {show_count(fade.before * stage.seq_len)} tokens before its boundary"
            raise ValueError(f"{what}, and this stage has {show_count(length)}. Shorten the fade.")
        return FadeOut(Mixture.from_shares(self.shares), first, fade)


def mixture_of(
    stage: Stage, shares: Mapping[str, Fraction], before: Before | None, following: Following | None = None
) -> StageMixture:
    """The stage's mixture, with its fade from the one before and the centred fade of the one after it."""
    new = Mixture.from_shares(shares)
    rows = None if following is None else known_rows(stage)
    out = None if following is None or rows is None else following.out_of(stage, rows)
    if stage.fade is None or before is None:
        return StageMixture(new, out=out)
    return StageMixture(new, before.mixture, before.rows, _fade(stage.fade, stage), before.new_rows, out)


def known_rows(stage: Stage) -> int | None:
    """A stage's rows where its length is in steps or tokens; None where it is in epochs."""
    steps = steps_of(stage, None, {})
    return None if steps is None else steps * stage.rows_of_step


def _fade(fade: FadeConfig, stage: Stage) -> Fade:
    """A fade in rows of a stage, rounded up; of a centred one half of them are on either side of the boundary."""
    sides = 2 if fade.center else 1
    if fade.tokens is not None:
        rows = -(-fade.tokens // (sides * stage.seq_len))
    else:
        assert fade.steps is not None, "a fade has one unit"
        rows = -(-fade.steps * stage.rows_of_step // sides)
    return Fade(sides * rows, rows if fade.center else 0, fade.shape, fade.steepness)

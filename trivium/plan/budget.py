"""Steps, tokens, epochs -> steps; shares as written -> exact shares."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil

from trivium.config.batches import Batches
from trivium.config.numbers import show_count
from trivium.config.schema import Config, Evaluate
from trivium.config.stages import Fade as FadeConfig
from trivium.config.stages import Stage
from trivium.errors import Problem
from trivium.model.spec import ModelSpec
from trivium.plan.lr.curve import exact
from trivium.plan.stage import PlannedStage
from trivium.rows.mixture import Fade, FadeOut, Mixture, StageMixture, normalised, tempered
from trivium.run.decisions import BatchResized, Decision, StageEnded, in_force


@dataclass(frozen=True, slots=True)
class Length:
    """A stage's length: steps, or the rows that it must have read, rounded up to whole steps."""

    steps: int | None = None
    rows: int | None = None

    def in_steps(self, batches: Batches) -> int:
        """The length in steps of these sizes."""
        if self.steps is not None:
            return self.steps
        assert self.rows is not None, "a length has one unit"
        return batches.steps_for(self.rows)


def asked_length(stage: Stage) -> Length | None:
    """A stage's length in steps or tokens; None where it is in epochs, or for each parameter of an unknown model."""
    if stage.steps is not None:
        return Length(steps=stage.steps)
    tokens = stage.budget_tokens
    return None if tokens is None else Length(rows=-(-tokens // stage.seq_len))


def epochs_length(mixture: StageMixture | None, rows_to_read: Mapping[str, int]) -> Length | None:
    """The length of a stage that counts epochs; None where they are of a source of unknown size.

    `rows_to_read` has, for each source that the budget counts, the rows after which it has been read that often.
    """
    if mixture is None or not rows_to_read:
        return None
    reached = [mixture.first_row_reaching(name, rows) for name, rows in rows_to_read.items()]
    return Length(rows=max(row for row in reached if row is not None))


def decided(
    stage: Stage, start: int | None, length: Length | None, decisions: Iterable[Decision]
) -> tuple[Batches, StageEnded | None]:
    """The rows of a stage's steps, changed from the step on at which that was decided; and how it ended early, if so.

    A stage ends early by its own rule alone: a decision on another one was made for a config that is no longer there.
    """
    batches = stage.batches
    if start is None or length is None:
        return batches, None
    for decision in in_force(decisions):
        end = start + length.in_steps(batches)
        if isinstance(decision, BatchResized) and start <= decision.step < end:
            batches = batches.changed(decision.step - start, decision.size)
        if isinstance(decision, StageEnded) and start < decision.step < end and stage.ends_by(decision.until):
            return batches, decision
    return batches, None


def endless_ramp(stage: PlannedStage) -> Problem | None:
    """What is wrong with a ramp of the batch size that does not end within its stage."""
    config = stage.config
    key, given = (
        ("batch_size", config.batch_size) if config.batch_tokens is None else ("batch_tokens", config.batch_tokens)
    )
    if given.over is None or stage.rows is None or stage.batches != config.batches:
        return None
    if stage.batches.pieces[-1].row < stage.rows:
        return None
    length = show_count(stage.rows * stage.seq_len)
    what = f"is {show_count(given.over)} tokens, and no step of the stage of {length} has the last size."
    return Problem(f"stages[{stage.index}].{key}.over", f"{what} Shorten it, or lengthen the stage.")


def measured_every(evaluate: Evaluate, stage: Stage) -> int | None:
    """Steps between the measurements of the figure on which a stage ends; None where it ends on none."""
    if stage.until is None:
        return None
    return evaluate.every if stage.until.score is None else evaluate.tasks_every


def unmeasured(stage: PlannedStage, evaluate: Evaluate) -> Problem | None:
    """What is wrong with a stage that is to end on a figure of which no measurement falls into it for sure."""
    every, longest = measured_every(evaluate, stage.config), stage.longest
    if every is None or longest is None or every < longest:
        return None
    key = "every" if stage.config.until is None or stage.config.until.score is None else "tasks_every"
    what = f"its figure is measured every {every:,} steps, and the stage has {longest:,} at the most."
    return Problem(f"stages[{stage.index}].until", f"{what} Lower evaluate.{key}, or lengthen the stage.")


def with_parameters_counted(stage: Stage, spec: ModelSpec | None) -> Stage:
    """The stage with its tokens for each parameter as a number of tokens, where the model is known."""
    budget = stage.tokens
    if budget is None or budget.per_parameter is None or spec is None:
        return stage
    tokens = ceil(exact(budget.per_parameter) * spec.matrix_parameters)
    return stage.model_copy(update={"tokens": budget.model_copy(update={"count": max(1, tokens)})})


def own_sources(stage: Stage, config: Config) -> list[str]:
    """The sources that a stage may read apart from what it replays."""
    shares = stage.mixture if stage.mixture is not None else stage.weights
    if shares is not None:
        return list(shares)
    if stage.sources is not None:
        return list(stage.sources)
    replayed = stage.replay or {}
    return [name for name, source in config.sources.items() if source.is_read_by_default and name not in replayed]


def shares_of(stage: Stage, config: Config, sizes: Mapping[str, int]) -> dict[str, Fraction] | None:
    """The stage's exact shares; None where they are in proportion to sizes that are not known.

    `sizes` has the tokens of each source of which they are known.

    What is replayed has its share of all rows; the stage's own sources share out the rest.
    """
    own = _own_shares(stage, config, sizes)
    if own is None or stage.replay is None:
        return own
    replayed = {name: exact(float(share)) for name, share in stage.replay.items()}
    rest = 1 - sum(replayed.values())
    return {name: rest * share for name, share in own.items()} | replayed


def _own_shares(stage: Stage, config: Config, sizes: Mapping[str, int]) -> dict[str, Fraction] | None:
    weights = stage.mixture if stage.mixture is not None else stage.weights
    if weights is not None:
        shares = normalised({name: exact(float(weight)) for name, weight in weights.items()})
    else:
        names = own_sources(stage, config)
        if len(names) == 1:
            return {names[0]: Fraction(1)}
        if any(name not in sizes for name in names):
            return None
        shares = normalised({name: Fraction(sizes[name] * config.sources[name].repeat) for name in names})
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

    def out_of(self, stage: Stage, batches: Batches, steps: int) -> FadeOut:
        """The fade as a stage of these steps sees it: the first half of it, in its own last rows."""
        num_rows = batches.rows_before(steps)
        if self.fade.tokens is not None:
            before = -(-self.fade.tokens // (2 * stage.seq_len))
        else:
            assert self.fade.steps is not None, "a fade has one unit"
            first, half = divmod(2 * steps - self.fade.steps, 2)
            size = batches.size_at(max(0, first))
            first_row = batches.rows_before(first) if first >= 0 else first * size
            before = num_rows - first_row - (size // 2 if half else 0)
        if before > num_rows:
            length = num_rows * stage.seq_len
            what = f"the next stage's fade begins {show_count(before * stage.seq_len)} tokens before its boundary"
            raise ValueError(f"{what}, and this stage has {show_count(length)}. Shorten the fade.")
        fade = Fade(2 * before, before, self.fade.shape, self.fade.steepness)
        return FadeOut(Mixture.from_shares(self.shares), num_rows - before, fade)


def mixture_of(
    stage: Stage, shares: Mapping[str, Fraction], before: Before | None, out: FadeOut | None = None
) -> StageMixture:
    """The stage's mixture, with its fade from the one before and the centred fade of the one after it."""
    new = Mixture.from_shares(shares)
    if stage.fade is None or before is None:
        return StageMixture(new, out=out)
    return StageMixture(new, before.mixture, before.rows, _fade(stage.fade, stage), before.new_rows, out)


def _fade(fade: FadeConfig, stage: Stage) -> Fade:
    """A fade in rows of its stage, rounded up; of a centred one half of them are on either side of the boundary.

    Steps have the sizes that the config gives them: a size that is changed within the fade leaves its rows as they are.
    """
    sides = 2 if fade.center else 1
    if fade.tokens is not None:
        rows = -(-fade.tokens // (sides * stage.seq_len))
    else:
        assert fade.steps is not None, "a fade has one unit"
        whole, half = divmod(fade.steps, sides)
        rows = stage.batches.rows_before(whole) + (-(-stage.batches.size_at(whole) // 2) if half else 0)
    return Fade(sides * rows, rows if fade.center else 0, fade.shape, fade.steepness)


def steps_for_tokens(stages: Sequence[PlannedStage], tokens: int) -> int:
    """The first step at which the run has read this many tokens; beyond its end by the last stage's steps."""
    steps = 0
    for stage in stages:
        whole = stage.tokens
        if whole is None or tokens <= whole:
            break
        tokens -= whole
        steps += stage.steps or 0
    return steps + stage.steps_for(tokens)

"""The average that each stage keeps beside the weights, and the steps after which they are copied for it.

What belongs to the model stays with it: a stage that says nothing goes on with the average of the stage before. One
that asks for another begins it at its first step.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trivium.config.numbers import show_count
from trivium.config.stages import Average, Stage
from trivium.engine.average import AverageSettings
from trivium.errors import Problem

if TYPE_CHECKING:
    from trivium.plan.stage import PlannedStage


@dataclass(frozen=True, slots=True)
class StageAverage:
    """What a stage keeps, and whether it begins with the stage."""

    config: Average
    begins: bool

    @property
    def settings(self) -> AverageSettings:
        """As an engine knows it."""
        return AverageSettings(self.config.ema, self.config.last, self.config.weights)

    @property
    def shown(self) -> str:
        """`ema 0.999`, or `last 12, every 5B tokens, 1-sqrt`."""
        return average_words(self.config.model_dump(mode="json", exclude_none=True))

    def copies_at(self, step: int, tokens_before: int, tokens_after: int) -> bool:
        """Whether the weights are copied after a step."""
        return bool(self.copies_between(step, step + 1, tokens_before, tokens_after))

    def copies_between(self, start: int, end: int, tokens_before: int, tokens_after: int) -> int:
        """Copies made in the steps [start, end), with the run's tokens before and after them; none with `ema`."""
        every = self.config.every
        if every is None:
            return 0
        if every.steps is not None:
            return end // every.steps - start // every.steps
        assert every.tokens is not None, "a checked distance is in tokens or steps"
        return tokens_after // every.tokens - tokens_before // every.tokens


def average_words(average: Mapping[str, Any]) -> str:
    """An average of a plan's JSON in words."""
    if "ema" in average:
        return f"ema {average['ema']:g}"
    every, weights = average["every"], average["weights"]
    distance = f"{every['steps']:,} steps" if "steps" in every else f"{show_count(every['tokens'])} tokens"
    return f"last {average['last']}, every {distance}" + (f", {weights}" if weights != "uniform" else "")


def stage_averages(stages: Sequence[Stage]) -> tuple[StageAverage | None, ...]:
    """What each stage keeps."""
    found: list[StageAverage | None] = []
    before: Average | None = None
    for stage in stages:
        kept = None if stage.end_average else stage.average or before
        found.append(None if kept is None else StageAverage(kept, begins=kept != before))
        before = kept
    return tuple(found)


def average_problems(stages: "Sequence[PlannedStage]") -> Iterator[Problem]:
    """Copies that are closer than steps are, and averages that have no copy yet where a stage starts from them."""
    for stage in stages:
        every = None if stage.average is None else stage.average.config.every
        step_tokens = stage.batch_size * stage.seq_len
        if every is not None and every.tokens is not None and every.tokens < step_tokens:
            what = f"is {every.tokens:,} tokens, less than the {step_tokens:,} of a step. Write more tokens, or"
            yield Problem(f"stages[{stage.index}].average.every", f"{what} {{ steps = {every.tokens} }}.")
            return
    for stage, copies in zip(stages[1:], copies_by_stage(stages), strict=False):
        before = stages[stage.index - 1].average
        if stage.config.start_from is not None and before is not None and before.config.ema is None and not copies:
            what = f"the average ({before.shown}) has no copy of the weights before step {stage.start:,}."
            yield Problem(f"stages[{stage.index}].start_from", f"{what} Write a smaller every.")


def unfilled_averages(stages: "Sequence[PlannedStage]") -> Iterator[Problem]:
    """Averages that never have as many copies as they ask for."""
    for stage, copies in zip(stages, copies_by_stage(stages), strict=False):
        following = stages[stage.index + 1].average if stage.index + 1 < len(stages) else None
        wanted = None if stage.average is None else stage.average.config.last
        if wanted is not None and copies < wanted and (following is None or following.begins):
            what = f"asks for the last {wanted} copies of the weights, and {copies} are made."
            yield Problem(f"stages[{stage.index}].average", f"{what} Write a smaller every, or a smaller last.")


def copies_by_stage(stages: "Sequence[PlannedStage]") -> list[int]:
    """Copies that each stage's average has had by the stage's end, of the stages from the first on that are known."""
    found: list[int] = []
    tokens_before = 0
    for stage in stages:
        if stage.start is None or stage.end is None or stage.tokens is None:
            break
        kept = 0
        if stage.average is not None:
            tokens = tokens_before, tokens_before + stage.tokens
            kept = stage.average.copies_between(stage.start, stage.end, *tokens)
            kept += 0 if stage.average.begins else found[-1]
        found.append(kept)
        tokens_before += stage.tokens
    return found

"""A plan and the room of one pass -> how many rows each pass of a step has.

torchtitan's own config says how many tokens a rank takes in one pass: `training.local_batch_size` rows of
`training.seq_len`. Stages change both, so the product is kept: 8 rows of 2,048 are 2 of 8,192. A step's rows on a rank
are divided into passes of equal size. A pipeline takes a fixed number of micro-batches at a time, of any size.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from trivium.errors import Problem
from trivium.plan.plan import CompletePlan
from trivium.plan.stage import CompleteStage


@dataclass(frozen=True, slots=True)
class Passes:
    """How the ranks of a launch divide the steps of a plan."""

    plan: CompletePlan
    readers: int  # groups of ranks that read rows of their own
    tokens: int  # that a rank takes in one pass at the most, unless one row has more
    at_once: int = 1  # passes that a pipeline takes together
    divisor: int = 1  # of row lengths: ranks that share a row's slots
    start: int = 0  # the launch's first step
    end: int | None = None  # and the step before which it ends; None: the run's end

    def rows(self, step: int) -> int:
        """Rows of each pass of a step, on one rank."""
        stage = self.plan.stage_at(step)
        return self._rows(stage, stage.size_at(step))

    def count(self, step: int) -> int:
        """Passes of a step, on one rank."""
        return self.plan.stage_at(step).size_at(step) // (self.readers * self.rows(step))

    def rows_of(self, seq_len: int) -> int:
        """Rows of a pass of this length, where no step's rows are divided."""
        return max(1, self.tokens // seq_len)

    def problems(self) -> Iterator[Problem]:
        """Sizes and lengths that these ranks cannot share, of steps that the launch may take."""
        for stage in self.plan.stages_between(self.start, self.end):
            yield from self._lengths(f"stages[{stage.index}].seq_len", stage.seq_len)
            unit = self.readers * self.at_once
            pieces = stage.batches.since(max(0, self.start - (stage.start or 0)))
            odd = [piece.size for piece in pieces if piece.step < (stage.steps or 0) and piece.size % unit]
            if odd:
                ranks = f"{self.readers} rank{' reads' if self.readers == 1 else 's read'} rows"
                pipeline = "" if self.at_once == 1 else f", and a pipeline takes {self.at_once} micro-batches at once"
                what = f"is {odd[0]:,}, but {ranks} of their own{pipeline}"
                yield Problem(f"stages[{stage.index}].batch_size", f"{what}. Write {_multiples(odd[0], unit)}.")
        evaluated = evaluated_length(self.plan)
        if evaluated is not None and self.plan.config.evaluate.seq_len is not None:
            yield from self._lengths("evaluate.seq_len", evaluated)

    def _lengths(self, where: str, seq_len: int) -> Iterator[Problem]:
        if seq_len % self.divisor:
            what = f"is {seq_len:,}, and torchtitan's ranks share rows of a multiple of {self.divisor:,} slots"
            yield Problem(where, f"{what}. Write {_multiples(seq_len, self.divisor)}.")

    def _rows(self, stage: CompleteStage, size: int) -> int:
        asked = stage.config.engine.micro_batch_size or self.plan.config.engine.micro_batch_size
        most = asked or self.rows_of(stage.seq_len)
        own = size // (self.readers * self.at_once)
        return next(rows for rows in range(min(most, own), 0, -1) if own % rows == 0)


def evaluated_length(plan: CompletePlan) -> int | None:
    """The row length of evaluations; None where there are none."""
    evaluate = plan.config.evaluate
    evaluates = evaluate.every is not None or evaluate.at_start or any(stage.config.evaluate for stage in plan.stages)
    return evaluate.seq_len or plan.stages[0].seq_len if evaluates else None


def _multiples(number: int, unit: int) -> str:
    lower = number // unit * unit
    return " or ".join(f"{each:,}" for each in (lower, lower + unit) if each)

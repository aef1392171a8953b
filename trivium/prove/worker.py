"""One rank of a launch that proves something: `python -P -m trivium.prove.worker JOB`, JOB as JSON."""

import os
import signal
import sys
from dataclasses import dataclass

from trivium.engine.base import StepSettings, StepStats
from trivium.engine.ranks import end_process
from trivium.errors import SilentRankError, TriviumError
from trivium.files import parse_json
from trivium.prove.given import write_given
from trivium.rows.batch import Batch
from trivium.screen import echo
from trivium.train.trainer import Trainer


@dataclass(frozen=True, slots=True)
class Job:
    """A config, how many of its steps are taken, and the step from which on the ranks kill themselves."""

    config: str
    overrides: list[str]
    dialect: str | None
    steps: int
    dies_at: int | None = None


class ProvingTrainer(Trainer):
    """Takes the first steps of a run, and writes down what its engine is given."""

    def __init__(self, job: Job) -> None:
        super().__init__(job.config, job.overrides, dialect=job.dialect)
        self.job = job

    @property
    def done(self) -> bool:
        return super().done or self.step >= self.job.steps

    def train_step(self, batch: Batch, now: StepSettings) -> StepStats:
        reader = self.loader.reader_in(self.plan.stages[now.stage])
        write_given(self.folder.path, self.ranks.rank, now.step, reader, batch)
        return super().train_step(batch, now)

    def on_step(self, step: int, stats: StepStats) -> None:
        dies_at = self.job.dies_at
        if dies_at is not None and step >= dies_at and self.ranks.share(self.folder.last_step() or 0):
            os.kill(os.getpid(), signal.SIGKILL)  # there is a checkpoint to resume from


def work(job: Job) -> None:
    """Take a job's steps; what went wrong is printed once, and ends the process."""
    try:
        ProvingTrainer(job).run()
    except TriviumError as error:
        if not isinstance(error, SilentRankError):
            echo(str(error), err=True)
        end_process(2)


if __name__ == "__main__":
    work(Job(**parse_json(sys.argv[1].encode())))

"""The class that people use and override: a config in, a trained model out.

    trivium.Trainer("run.toml", overrides=["stages.0.steps=10"]).run()

Small methods may be overridden: `optimizer`, `schedule`, `evaluator`, `batch`, `train_step`, `val_step`, `save`,
`load`, `run`, the property `done`, and the hooks `on_start`, `on_stage`, `on_step`, `on_end`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal

import tomli_w

from trivium.config.load import load, peek_engine
from trivium.config.schema import Config, Shape
from trivium.engine.base import Engine, EvalStats, OptimizerSettings, OwnOptimizer, StepSettings, StepStats
from trivium.engine.make import join_ranks
from trivium.loader.loader import Loader
from trivium.loader.trace import origins_of
from trivium.plan.export import plan_json
from trivium.plan.make import make_plan
from trivium.plan.settings import mesh_shape, stage_settings
from trivium.plan.stage import PlannedStage
from trivium.rows.batch import Batch
from trivium.run.events import (
    Ended,
    Evaluated,
    Event,
    Preempted,
    Said,
    Scored,
    Sink,
    Skipped,
    Spiked,
    StageBegan,
)
from trivium.run.folder import RunFolder
from trivium.run.restore import fetch_references, find_resume_checkpoint
from trivium.run.saver import Saver
from trivium.train.cadence import Cadence
from trivium.train.guard import Guard
from trivium.train.lag import Lag
from trivium.train.loop import train
from trivium.train.meter import Meter, peak_memory
from trivium.train.references import References
from trivium.train.scoring import Scoring
from trivium.train.session import initial_weights, session, start_of
from trivium.train.state import load_checkpoint, raw_config, state_of
from trivium.train.transition import stage_changes
from trivium.train.validation import evaluate, validation_batches
from trivium.train.watchdog import Watchdog

EVALUATION_TOKENS = 16_384  # in one pass of an evaluation, where no micro-batch says otherwise


class Trainer:
    """One run, from its first step or its last checkpoint to its end."""

    def __init__(
        self,
        config: Config | str | Path,
        overrides: Sequence[str] = (),
        *,
        dialect: str | None = None,
        world_size: int | None = None,
        dry_run: bool = False,
        show: bool = True,
    ) -> None:
        self.ranks = join_ranks(*_engine_and_device(config, overrides))
        with self.ranks.as_one():
            many = world_size or self.ranks.size * self.ranks.local_devices
            loaded = None if isinstance(config, Config) else load(config, overrides, dialect=dialect, world_size=many)
            said = config if loaded is None else loaded.config
            assert isinstance(said, Config), "a path has been loaded"
            self.config = self._configured(said)
            self.notes = () if loaded is None else loaded.warnings
            devices = self.ranks.local_devices if self.config.engine.name == "jax" else None
            self.mesh = mesh_shape(self.config.engine.parallel, self.ranks.size, devices)
            self.plan = make_plan(self.config, fetch=True).complete()
            self.config = self.plan.config  # with what it takes from the run that its weights come from
            reader, readers = self.mesh.reader(self.ranks.rank, self.ranks.size), self.mesh.readers(self.ranks.size)
            self.loader = Loader(self.plan, reader, readers)
        self.loader.say = self._say
        self.dry_run = dry_run
        self.show = show
        self.step = 0
        self.stopping = False
        self.stopped_by: str | None = None
        self.guard = Guard(self.config.guard)
        self.last_evaluation: Evaluated | None = None
        self.best: dict[str, float] = {}
        self.engine: Engine
        self.meter: Meter
        self.scoring: Scoring
        self.saver: Saver
        self.references: References
        self.folder: RunFolder
        self.sinks: list[Sink] = []
        self._ahead: Iterator[tuple[int, Batch]] | None = None
        self._entered = -1
        self._scored_at = -1
        self._signalled = False
        self._saves_again = False
        self.cadence: Cadence
        self.watchdog: Watchdog | None = None
        self.lag = Lag(self.ranks, self._say)

    # What people override.

    def optimizer(self) -> str | OptimizerSettings | OwnOptimizer | None:
        """Another optimizer than the config's: a name, settings, one of your own (see OwnOptimizer), or None."""
        return None

    def schedule(self) -> Shape | Callable[[int], float] | None:
        """Another schedule than the config's: a shape's name, a multiplier for each step, or None."""
        return None

    def evaluator(self) -> Callable[["Trainer"], Mapping[str, float]] | None:
        """Scores to take beside the validation loss; None for none."""
        return None

    def batch(self, step: int, split: Literal["train", "validation"] = "train") -> Batch:
        """This rank's rows of a step, those of training made ahead. For validation, the first batch of the stage's."""
        if split == "validation":
            return next(self.validation_batches())
        if self._ahead is None:
            self._ahead = self.loader.batches(start=step)
        found, batch = next(self._ahead)
        if found != step:
            self._ahead = None
            return self.batch(step)
        return batch

    def train_step(self, batch: Batch, now: StepSettings) -> StepStats:
        """One update."""
        return self.engine.step(batch, now)

    def val_step(self, batch: Batch) -> EvalStats:
        """Plain cross-entropy of a batch."""
        return self.engine.evaluate(batch)

    @property
    def done(self) -> bool:
        """Whether the last step is taken, or the run was told to stop."""
        return self.stopping or self.finished

    @property
    def finished(self) -> bool:
        """Whether the run's last step is taken."""
        return self.step >= self.plan.total_steps

    def on_start(self) -> None:
        """Before the first step of a launch."""

    def on_stage(self, stage: PlannedStage) -> None:
        """Before a stage's first step, its settings in place."""

    def on_step(self, step: int, stats: StepStats) -> None:
        """After each update."""

    def on_end(self) -> None:
        """After the last step of a launch."""

    # The run.

    def run(self) -> "Trainer":
        """Train to the end; a run that exists goes on from its last checkpoint."""
        with self.session():
            self.load()
            self.on_start()
            train(self)
            self.on_end()
        return self

    def load(self) -> None:
        """Stand where the last sound checkpoint stands, or at the first step with initial weights."""
        second = None if self.saver.mirror is None else self.saver.mirror.target
        checkpoint = find_resume_checkpoint(self.folder, second, self.references.boundaries, self._say, self.ranks)
        if checkpoint is None:
            initial_weights(self)
        with self.ranks.as_one():
            changes = {} if checkpoint is None else load_checkpoint(self, checkpoint)
            if second is not None and self.ranks.is_main:
                past = [step for step in self.references.boundaries if step < self.step]
                fetch_references(self.folder, second, past, self._say)
        with self.ranks.as_one():
            self.references.check(self.step)
            if self.ranks.is_main:
                self.folder.write_plan(tomli_w.dumps(raw_config(self.config)), plan_json(self.plan))
        self.tell(start_of(self, resumed=checkpoint is not None, changes=changes))

    def save(self, reason: str = "asked") -> None:
        """Write a checkpoint of the steps taken so far."""
        if self.dry_run and self.step not in self.references.boundaries:
            return
        in_background = self.config.checkpoint.background and reason == "cadence"
        must_succeed = reason in ("final", "stopped") or self.step in self.references.boundaries
        self.saver.save(
            self.engine, self.step, self.state(), reason, background=in_background, must_succeed=must_succeed
        )

    def evaluate(self) -> Evaluated | None:
        """Validation figures of the stage that the run is in; None where nothing is held out."""
        event = evaluate(self.step, self.stage.name, self.validation_batches(), self.val_step)
        evaluator = self.evaluator()
        if event is not None and evaluator is not None:
            event = replace(event, scores=dict(evaluator(self)))
        if event is not None:
            self.last_evaluation = event
            if event.loss < self.best.get("validation loss", float("inf")):
                self.best["validation loss"] = event.loss
                self.saver.best_step = self.step
            self.tell(event)
        return event

    def score(self) -> Scored | None:
        """Scores of the tasks that the config names, once a step; None where it names none."""
        event = None if self._scored_at == self.step else self.scoring.score(self)
        if event is not None:
            self._scored_at = self.step
            self.tell(event)
        return event

    def sample(self) -> None:
        """Tell what the model writes after the config's prompts."""
        for event in self.scoring.sample(self):
            self.tell(event)

    @property
    def stage(self) -> PlannedStage:
        """The stage that the engine is in, or will be in first."""
        last = self.plan.total_steps - 1
        entered = self._entered >= 0
        return self.plan.stages[self._entered] if entered else self.plan.stage_at(max(0, min(self.step, last)))

    def validation_batches(self) -> Iterator[Batch]:
        """The batches of one evaluation in the stage that the run is in."""
        stage = self.stage
        rows = self.config.engine.micro_batch or max(1, EVALUATION_TOKENS // stage.seq_len)
        for batch in validation_batches(self.plan, stage, rows, self.loader.rank, self.loader.world_size):
            self.beat()
            yield batch

    def state(self) -> dict[str, Any]:
        """The run's own part of a checkpoint: plain values."""
        return state_of(self)

    # What the loop asks.

    def settings_at(self, step: int) -> StepSettings:
        """What a step is taken with."""
        now = self.plan.settings_at(step)
        schedule = self.schedule()
        if callable(schedule):
            multiplier = schedule(step)
            lr = {group: multiplier * peak for group, peak in self.plan.peak_lr.items()}
            now = replace(now, lr_multiplier=multiplier, lr=lr)
        return replace(now, loss_limit=self.guard.loss_limit)

    def stage_begins(self, step: int) -> bool:
        """Whether the engine has yet to enter the stage of this step."""
        return self.plan.stage_at(step).index != self._entered

    def begin_stage(self, step: int) -> None:
        """Enter a stage: at its first step with a boundary checkpoint, after a resume in its middle without."""
        stage = self.plan.stage_at(step)
        begins = step == stage.start
        before = self.plan.stages[stage.index - 1] if stage.index else None
        if begins and before is not None:
            if self._entered == before.index and before.config.evaluate:
                self.evaluate()
                self.score()
            self.tell(StageBegan(step=step, stage=stage.index, name=stage.name, changes=stage_changes(before, stage)))
            if self._entered == before.index:
                self.save("boundary")
        elif begins:
            self.tell(StageBegan(step=step, stage=stage.index, name=stage.name, changes={}))
            if self.ranks.share(self.references.lacks(step)):
                self.save("boundary")
        reference = self.references.of(stage)
        self.engine.enter(stage_settings(stage.config, stage.rope, begins=begins, reference=reference))
        self._entered = stage.index
        self.guard.enter(stage.index)
        if begins and stage.config.evaluate:
            self.evaluate()
            self.score()
        if begins:
            self.sample()
        self.on_stage(stage)

    def skips(self, step: int) -> bool:
        """Whether the config leaves out this step's rows."""
        return self.guard.skips(step)

    def step_taken(self, step: int, now: StepSettings, stats: StepStats) -> None:
        """Count the step and tell of it; one that went wrong with its rows."""
        if stats.skipped is None:
            self.step = step + 1
            taken = self.meter.took(step, now, stats)
            self.tell(replace(taken, **self.lag.took(taken.seconds - stats.waited)))
            if self.guard.is_spike(stats):
                limit, rows = self.guard.spike_limit, self._keep_rows(step)
                stage = self.plan.stages[now.stage].name
                self.tell(Spiked(step=step + 1, stage=stage, loss=stats.loss, limit=limit, rows=rows))
        else:
            self.step_skipped(step, stats.skipped, self._keep_rows(step))
        self.guard.took(step, stats)
        self.on_step(step, stats)
        self._agree()

    def step_skipped(self, step: int, why: str, rows: str | None = None) -> None:
        """Count a step that made no update, and tell of it."""
        self.step = step + 1
        self.tell(Skipped(step=step + 1, stage=self.plan.stage_at(step).name, why=why, rows=rows))

    def skip_step(self, step: int) -> None:
        """Count a step whose rows the config leaves out."""
        self.step_skipped(step, "its rows are left out (guard.skip_steps)")
        self.guard.skip()
        self._agree()

    def _agree(self) -> None:
        """What one rank may know alone is known by all: a signal, and a save that is to be tried again."""
        self.stopping, self._saves_again = self.ranks.agree(
            self.stopping or self._signalled, self.saver.wants_to_try_again
        )

    def evaluates_at(self, step: int) -> bool:
        """Whether an evaluation is due once so many steps are taken."""
        every = self.config.evaluate.every
        return every is not None and step % every == 0

    def scores_at(self, step: int) -> bool:
        """Whether scores are due once so many steps are taken."""
        every = self.config.evaluate.tasks_every
        return every is not None and step % every == 0

    def saves_at(self, step: int) -> bool:
        """Whether a checkpoint is due once so many steps are taken; boundaries and the end have their own."""
        milestones = self.config.checkpoint.milestones
        is_milestone = milestones is not None and step % milestones == 0
        is_due = self.cadence.due(step) or is_milestone or self._saves_again
        return step != self.plan.total_steps and is_due

    def finish(self) -> None:
        """After the last step: a last evaluation where asked, the final checkpoint, the figures."""
        if self.finished and self._entered >= 0:
            if self.stage.config.evaluate:
                self.evaluate()
                self.score()
            self.sample()
        if not self.finished:
            signals = [each for each in self.ranks.gather(self.stopped_by) if each is not None]
            self.tell(Preempted(step=self.step, signal=signals[0] if signals else "told to stop"))
        self.saver.wait()
        if not self.ranks.share(self._saved_already()):
            self.save("final" if self.finished else "stopped")
        self.saver.close()
        self.tell(
            Ended(
                step=self.step,
                finished=self.finished,
                steps=self.step,
                peak_memory=peak_memory(),
                training_seconds=self.meter.training_seconds,
                best=self.best,
                world_size=self.ranks.size,
            )
        )

    def tell(self, event: Event) -> None:
        """Give an event to the file, the terminal and the trackers; whatever happens is progress."""
        self.beat()
        for sink in self.sinks:
            sink.write(event)

    def beat(self) -> None:
        """There is progress: what takes long without an event says so now and then."""
        if self.watchdog is not None:
            self.watchdog.beat()

    @contextmanager
    def session(self) -> Iterator[None]:
        """The run's folder, locked; its sinks, open; signals that stop it after a step."""
        with session(self):
            yield

    def close_batches(self) -> None:
        """Make no more batches ahead."""
        if self._ahead is not None:
            self._ahead.close()  # type: ignore[attr-defined]
        self.loader.close()

    def stop(self, signal: str) -> None:
        """Called by a signal, in the middle of anything: leaves a mark and no more."""
        self._signalled = True
        self.stopped_by = signal

    def _configured(self, config: Config) -> Config:
        """The config with what `optimizer` and `schedule` say by name."""
        optimizer, schedule = self.optimizer(), self.schedule()
        if isinstance(optimizer, str):
            named = type(config.optimizer).model_validate({**config.optimizer.model_dump(), "name": optimizer})
            config = config.model_copy(update={"optimizer": named})
        if isinstance(schedule, str):
            shaped = config.schedule.model_copy(update={"shape": schedule})
            config = config.model_copy(update={"schedule": shaped})
        return config

    def _saved_already(self) -> bool:
        checkpoints = self.folder.checkpoints()
        return bool(checkpoints) and checkpoints[-1].step == self.step

    def _keep_rows(self, step: int) -> str | None:
        """Write down what stood in the rows of a step."""
        if self.dry_run or not self.ranks.is_main:
            return None
        try:
            return self.folder.write_rows(step, [asdict(row) for row in origins_of(self.loader, step)])
        except OSError as failure:  # a full disk; they can be had at any time
            how = f"trivium inspect {self.folder.path} --step {step} shows them"
            self._say(f"the rows of step {step:,} are not written down: {failure.strerror}; {how}")
            return None

    def _say(self, text: str) -> None:
        self.tell(Said(step=self.step, text=text))


def _engine_and_device(config: Config | str | Path, overrides: Sequence[str]) -> tuple[str, str | None]:
    """What decides how ranks are joined, which is before any of them may refuse the config."""
    engine = config.engine if isinstance(config, Config) else peek_engine(config, overrides)
    return engine.name, engine.device

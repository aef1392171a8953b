"""The loop: reads as a sentence, knows no framework.

A step is a batch, its settings and an update; around it come stages, evaluations, scores and checkpoints. What people
override is the Trainer's; what is open while it trains is the Session's; what happens between two steps is here.
"""

import gc
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from trivium.config.optimizer import StageOptimizer
from trivium.engine.base import StepSettings, StepStats
from trivium.errors import GuardError, StoppedError
from trivium.loader.trace import origins_of
from trivium.plan.settings import planned_settings
from trivium.plan.stage import CompleteStage
from trivium.rows.batch import Batch
from trivium.run.events import UNTIL, Ended, EndedEarly, Preempted, Skipped, Spiked, StageBegan
from trivium.text.tokenizer import open_tokenizer
from trivium.train.meter import peak_memory
from trivium.train.session import Session
from trivium.train.until import heed_figure, measures_at

if TYPE_CHECKING:
    from trivium.train.trainer import Trainer

GARBAGE_STEPS = 50  # between two collections of Python's garbage
FIRST_STEP_MINUTES, STEP_MINUTES = 10.0, 5.0  # that devices wait for the others
STAGE_CHANGES = (
    "seq_len",
    "batch_size",
    "packing",
    "document_mask",
    "kl",
    "distill",
    "loss",
    "z_loss",
    "loss_on",
    "loss_weight",
    "goldfish",
    "start_from",
    "engine",
)


def train(trainer: "Trainer", session: Session) -> None:
    """Take every step to the run's end, or until it is told to stop."""
    loop = Loop(trainer, session)
    with garbage_by_step():
        take_steps(trainer, loop)
    session.profiler.finish(trainer.step - 1)
    loop.finish()


def take_steps(trainer: "Trainer", loop: "Loop") -> None:
    session = loop.session
    while not trainer.done:
        step = trainer.step
        if loop.stage_begins(step):
            loop.begin_stage(step)
        if loop.missed_figure(step):
            loop.measure()
            continue
        session.profiler.before(step)
        if session.guard.skips(step):
            loop.skip(step)
        else:
            session.meter.start()
            try:
                with loop.first_shown("getting the first rows"):
                    batch = trainer.batch(step)
            except StoppedError:
                if session.ranks.size > 1:  # the others may be in the step already, and cannot save
                    raise
                trainer.stopping = True
                return
            session.meter.got_batch()
            loop.take(step, batch)
        if loop.evaluates_at(step + 1):
            trainer.evaluate()
        if loop.scores_at(step + 1):
            loop.score()
        if measures_at(trainer, step + 1):
            heed_figure(trainer, session)
        if loop.saves_at(step + 1):
            trainer.save("cadence")
        if loop.collects_at(step + 1):
            gc.collect()
        session.profiler.after(step)


@contextmanager
def garbage_by_step() -> Iterator[None]:
    """Inside, Python collects garbage only where it is told to: ranks wait for each other, and so do it together."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@dataclass(frozen=True, slots=True)
class Loop:
    """What happens between the steps of one launch."""

    trainer: "Trainer"
    session: Session

    def stage_begins(self, step: int) -> bool:
        """Whether the engine has yet to enter the stage of this step."""
        return self.trainer.plan.stage_at(step).index != self.session.entered

    def begin_stage(self, step: int) -> None:
        """Enter a stage: at its first step with a boundary checkpoint, after a resume in its middle without."""
        trainer, session = self.trainer, self.session
        stage = trainer.plan.stage_at(step)
        begins = step == stage.start
        before = trainer.plan.stages[stage.index - 1] if stage.index else None
        if begins and before is not None:
            was_stopped_here = session.evaluated_end < before.end and session.entered != before.index
            self._end_stage(before, stage)
            changes = stage_changes(before, stage) | optimizer_changes(*trainer.plan.optimizers[before.index :][:2])
            session.tell(StageBegan(step=step, stage=stage.index, name=stage.name, changes=changes))
            if session.entered == before.index or was_stopped_here:  # its checkpoint was written before the stage's end
                trainer.save("boundary")
        elif begins:
            session.tell(StageBegan(step=step, stage=stage.index, name=stage.name, changes={}))
            if session.ranks.share(session.references.lacks(step)):
                trainer.save("boundary")
        self._enter(stage, begins=begins)
        session.guard.enter(stage.index, trainer.plan.optimizers[stage.index].settings.skip)
        if begins:
            asked = step == 0 and trainer.config.evaluate.at_start
            self._evaluate_around(
                stage, asked=asked, changed=stage.config.start_from is not None or stage.config.vocab is not None
            )
            self.sample()
        trainer.on_stage(stage)

    def _enter(self, stage: CompleteStage, *, begins: bool) -> None:
        session = self.session
        settings = planned_settings(
            stage,
            begins=begins,
            references=session.references.of(stage),
            optimizer=self.trainer.plan.optimizers[stage.index],
            average_before=self.trainer.plan.stages[stage.index - 1].average if stage.index else None,
        )
        session.engine.enter(self.trainer.own.entered(settings))
        session.compared.enter(stage.index)
        session.entered = stage.index
        self.expect_compilation()

    def resizes_at(self, step: int) -> bool:
        """Whether a step has another batch size than the one before it in its stage."""
        stage = self.trainer.plan.stage_at(step)
        return step > stage.start and stage.size_at(step) != stage.size_at(step - 1)

    def expect_compilation(self) -> None:
        """Let devices wait longer for the next step: an engine may compile it."""
        self.session.ranks.limit_waits(FIRST_STEP_MINUTES)
        self.session.first_step = True

    def first_shown(self, what: str) -> AbstractContextManager[Any]:
        """Show what is under way before and in the first step of a stage: later ones are quick."""
        return self.session.under_way(what) if self.session.first_step else nullcontext()

    @property
    def first_step_words(self) -> str:
        """`compiling and taking the first step of stage long`, which may take minutes."""
        engine = self.trainer.config.engine
        how = "compiling and taking" if engine.name == "jax" or engine.compile else "taking"
        return f"{how} the first step of stage {self.trainer.stage.name}"

    def take(self, step: int, batch: Batch) -> StepStats:
        """Take a step with its batch, within the guard's limits."""
        trainer, session = self.trainer, self.session
        if self.resizes_at(step):
            self.expect_compilation()
        flags = self.flags if self.flags_go_with_steps else None
        loss_limit, norm_limit = session.guard.limits
        now = replace(trainer.settings_at(step), loss_limit=loss_limit, norm_limit=norm_limit, flags=flags)
        with self.first_shown(self.first_step_words):
            stats = trainer.train_step(batch, now)
        self.took(step, now, stats)
        return stats

    def took(self, step: int, now: StepSettings, stats: StepStats) -> None:
        """Count a step and report it; one that went wrong with its rows."""
        trainer, session = self.trainer, self.session
        if session.first_step:
            session.ranks.limit_waits(STEP_MINUTES)
            session.first_step = False
        self._count(step)
        session.row_losses.add(step, stats.loss_by_row)
        taken = None if stats.skipped is not None else session.meter.took(step, now, stats)
        limit = session.guard.spike_limit
        too_many: GuardError | None = None
        try:
            session.guard.took(step, stats)
        except GuardError as error:  # raised below, once the step is reported
            too_many = error
        trainer.on_step(step, stats)  # all of the step is counted by now: it may save
        stage, figures = trainer.plan.stages[now.stage].name, dict(trainer.figures)
        trainer.figures.clear()
        if stats.skipped is not None:
            rows = self._keep_rows(step, stats)
            session.tell(Skipped(step=step + 1, stage=stage, why=stats.skipped, figures=figures, rows=rows))
        if taken is not None:
            is_last = step + 1 == trainer.plan.stages[now.stage].end
            compared = session.compared.took(taken.seconds, stats.together, ends_stage=is_last)
            session.tell(replace(taken, figures=figures, **compared))
            if stats.loss > limit:
                rows = self._keep_rows(step, stats)
                session.tell(Spiked(step=step + 1, stage=stage, loss=stats.loss, limit=limit, rows=rows))
        if stats.notice is not None:
            session.say(stats.notice)
        if too_many is not None:
            raise too_many
        self._heed(session.ranks.agree(*self.flags()) if stats.raised is None else stats.raised)

    def _count(self, step: int) -> None:
        """A step is over, whether or not it had an update; an average may be due a copy of the weights."""
        self.trainer.step = step + 1
        if self.trainer.plan.copies_at(step):
            self.session.engine.add_to_average()

    def skip(self, step: int) -> None:
        """Count a step whose rows the config skips."""
        self._count(step)
        why = "its rows are skipped (guard.skip_steps)"
        self.session.tell(Skipped(step=step + 1, stage=self.trainer.plan.stage_at(step).name, why=why))
        self.session.guard.skip()
        self._heed(self.session.ranks.agree(*self.flags()))

    def evaluates_at(self, steps: int) -> bool:
        every = self.trainer.config.evaluate.every
        return every is not None and steps % every == 0

    def scores_at(self, steps: int) -> bool:
        every = self.trainer.config.evaluate.tasks_every
        return every is not None and steps % every == 0

    def missed_figure(self, step: int) -> bool:
        """Whether a checkpoint of this step was written before it was looked at whether the stage ends here."""
        return self.session.measured_at != step and measures_at(self.trainer, step)

    def measure(self) -> None:
        """Measure the figure of the stage at the current step, and end it there if that is reached."""
        if self.evaluates_at(self.trainer.step):
            self.trainer.evaluate()
        if self.scores_at(self.trainer.step):
            self.score()
        heed_figure(self.trainer, self.session)

    def collects_at(self, steps: int) -> bool:
        """Whether Python's garbage is due: what steps leave now and then, what evaluations leave at once."""
        return steps % GARBAGE_STEPS == 0 or self.evaluates_at(steps) or self.scores_at(steps)

    def saves_at(self, steps: int) -> bool:
        """Whether a checkpoint is due after this many steps; boundaries and the end have their own."""
        milestones = self.trainer.config.checkpoint.keep_every
        is_milestone = milestones is not None and steps % milestones == 0
        is_due = self.session.cadence.due(steps) or is_milestone or self.session.saves_now
        return is_due and steps not in self.own_saves

    @property
    def own_saves(self) -> set[int]:
        """The steps after which a checkpoint is written in any case: where a stage begins, and the run's end."""
        return {*(stage.start for stage in self.trainer.plan.stages), self.trainer.plan.total_steps}

    def score(self, *, again: bool = False) -> None:
        """Score the tasks that the config names, once a step, and `again` where the weights have changed since."""
        trainer, session = self.trainer, self.session
        if session.scored_at == trainer.step and not again:
            return
        session.scored_at = trainer.step
        for averaged in trainer.evaluated_weights:
            with session.under_way("scoring tasks"), trainer.with_weights(averaged=averaged):
                event = session.scoring.score(trainer.step, trainer.stage, session.beat, averaged=averaged)
            if event is not None:
                session.tell(event)
            if averaged == trainer.evaluated_weights[0]:
                session.last_scores = event

    def sample(self) -> None:
        """Report what the model writes after the config's prompts."""
        with self.session.under_way("writing texts"):
            for event in self.session.scoring.sample(self.trainer.step, self.trainer.stage):
                self.session.tell(event)

    def finish(self) -> None:
        """After the last step: a last evaluation where asked, the final checkpoint, the figures."""
        trainer, session = self.trainer, self.session
        is_new = False
        if trainer.finished:
            is_new = self._end_stage(trainer.plan.stages[-1], asked=trainer.config.evaluate.every is not None)
            if session.entered >= 0:
                self.sample()
        elif trainer.reached and session.entered >= 0 and trainer.step == trainer.stage.end:  # by these ranks
            is_new = self._end_stage(trainer.stage, trainer.plan.stages[trainer.stage.index + 1])
        if not trainer.finished:
            signals = [each for each in session.ranks.gather(session.signal) if each is not None]
            why = UNTIL if trainer.reached else "told to stop"
            session.tell(Preempted(step=trainer.step, signal=signals[0] if signals else why))
        session.saver.wait()
        if is_new or not session.ranks.share(session.folder.last_step() == trainer.step):
            trainer.save("final" if trainer.finished else "stopped")
        session.saver.close()
        session.tell(
            Ended(
                step=trainer.step,
                finished=trainer.finished,
                steps=trainer.step,
                peak_memory=peak_memory(),
                training_seconds=session.meter.training_seconds,
                best=session.best,
                world_size=session.ranks.size,
            )
        )

    def _end_stage(self, stage: CompleteStage, *following: CompleteStage, asked: bool = False) -> bool:
        """Evaluate after a stage's last step, once; also where a signal or a kill fell between the two."""
        session = self.session
        if session.evaluated_end >= stage.end:
            return False
        session.evaluated_end = stage.end
        self._tell_end(stage)
        wanted = asked or any(each.config.evaluate for each in (stage, *following))
        if wanted and session.entered != stage.index:
            self._enter(stage, begins=False)
        self._evaluate_around(stage, *following, asked=asked)
        return wanted

    def _tell_end(self, stage: CompleteStage) -> None:
        """Report why a stage that may end on a figure has ended."""
        until, ended = stage.config.until, stage.ended
        if ended is not None:
            self.session.tell(
                EndedEarly(
                    step=ended.step,
                    stage=stage.name,
                    until=ended.until,
                    figure=ended.figure,
                    longest=stage.longest or stage.steps,
                    total_steps=self.trainer.plan.total_steps,
                )
            )
        elif until is not None:
            what = f"stage {stage.name} ends after {stage.steps:,} steps, its longest"
            self.session.say(f"{what}: no evaluation had {until.rule}")

    def _evaluate_around(self, *stages: CompleteStage, asked: bool = False, changed: bool = False) -> None:
        """Evaluate and score where one of these stages begins or ends, if it or the config asks for that; once.

        A new stage is evaluated again only where its documents are masked otherwise, or its weights are `changed`: both
        give other figures.
        """
        trainer, last = self.trainer, self.session.last_evaluation
        wanted = any(stage.config.evaluate for stage in stages)
        is_done = (
            last is not None
            and last.step == trainer.step
            and last.fingerprint_by_source == trainer.validation_fingerprints
            and not changed
        )
        if (wanted or asked) and not is_done:
            trainer.evaluate()
        if wanted:
            self.score(again=changed)

    def flags(self) -> tuple[bool, ...]:
        """What one rank may know alone: that the run is to stop, and that a checkpoint is due."""
        trainer, session = self.trainer, self.session
        stopping = trainer.stopping or session.signal is not None
        minutes_over = session.ranks.is_main and session.cadence.minutes_over()
        return stopping, minutes_over or session.saver.wants_to_try_again

    @property
    def flags_go_with_steps(self) -> bool:
        """Whether a step's own call between ranks carries the flags; hooks may raise one after that, by `stopping`."""
        return self.session.ranks.size > 1 and not self.trainer.is_overridden

    def _heed(self, raised: Sequence[bool]) -> None:
        """What any rank has raised all ranks know."""
        self.trainer.stopping, self.session.saves_now = raised

    def _keep_rows(self, step: int, stats: StepStats) -> str | None:
        """Write down the rows of a step: each one's loss and documents, of those with the highest losses the text."""
        trainer, session = self.trainer, self.session
        if trainer.dry_run or not session.ranks.is_main:
            return None
        try:
            tokenizer = open_tokenizer(trainer.config.tokenizer)
            rows = origins_of(trainer.loader, step, stats.loss_by_row, tokenizer)
            return session.folder.write_rows(step, [asdict(row) for row in rows])
        except Exception as failure:  # nothing that only explains may end a run
            how = f"trivium inspect {session.folder.path} --step {step} shows them"
            reason = getattr(failure, "strerror", None) or failure
            session.say(f"the rows of step {step:,} are not written down: {reason}; {how}")
            return None


def stage_changes(before: CompleteStage, stage: CompleteStage) -> dict[str, tuple[Any, Any]]:
    """What differs between two stages: before and after, by key."""
    changes = {}
    for key in STAGE_CHANGES:
        old, new = (getattr(each.config, key) for each in (before, stage))
        if key == "batch_size":
            old, new = before.size_at(before.end - 1), stage.size_at(stage.start)
        if old != new:
            changes[key] = (_plain(old), _plain(new))
    if before.rope is not None and stage.rope is not None and before.rope != stage.rope:
        changes["rope"] = (before.rope.deciding(), stage.rope.deciding())
    for key in ("freeze", "vocab"):
        old, new = getattr(before, key), getattr(stage, key)
        if old != new:
            changes[key] = (_plain(old), _plain(new))
    if before.average != stage.average and (stage.average is None or stage.average.begins):
        old, new = (None if each is None else each.shown for each in (before.average, stage.average))
        changes["average"] = (old, new)
    if before.shares != stage.shares:
        changes["mixture"] = (_shown_shares(before), _shown_shares(stage))
    if before.seed != stage.seed:
        changes["seed"] = (before.seed, stage.seed)
    return changes


def optimizer_changes(before: StageOptimizer, now: StageOptimizer) -> dict[str, tuple[Any, Any]]:
    """What differs between two stages' optimizers, and whether the state starts fresh."""
    changes = {f"optimizer.{key}": (_plain(old), _plain(new)) for key, (old, new) in now.changes_from(before).items()}
    return changes | ({"optimizer's state": ("kept", "fresh")} if now.is_fresh else {})


def _shown_shares(stage: CompleteStage) -> dict[str, float]:
    return {name: round(float(share), 6) for name, share in stage.shares.items()}


def _plain(value: Any) -> Any:
    value = list(value) if isinstance(value, tuple) else value
    return value.model_dump(exclude_none=True) if isinstance(value, BaseModel) else value

"""One launch of a run: its folder locked, its engine made, its sinks open; closed again whatever happens.

A `Session` is everything that is open while a run trains. It is made once, by `open_session`, and handed to whoever
needs it; only where the launch is changes later (`entered`, `scored_at`, `best`, ...).
"""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trivium.engine.base import Engine
from trivium.engine.memory import device_memory
from trivium.engine.ranks import Ranks
from trivium.errors import StoppedError
from trivium.forecast.predicted import PredictedPeaks
from trivium.plan.plan import CompletePlan
from trivium.run.event_file import EventFile
from trivium.run.events import Evaluated, Event, Failed, Notice, Scored, Sink
from trivium.run.folder import Checkpoint, RunFolder, written_to
from trivium.run.mirror import Mirror
from trivium.run.row_losses import RowLosses
from trivium.run.saver import Cadence, Retention, Saver
from trivium.screen import under_way
from trivium.train.guard import Guard
from trivium.train.meter import Compared, Meter, Profiler
from trivium.train.references import References
from trivium.train.resume import raw_config
from trivium.train.scoring import Scoring
from trivium.train.screens.log import RunLog
from trivium.train.screens.standing import Launch
from trivium.train.screens.view import terminal_view
from trivium.train.setup import run_engine
from trivium.train.signals import stops_on_signals
from trivium.train.sinks import Sinks
from trivium.train.trackers.make import trackers
from trivium.train.watchdog import Process, Watchdog, this_process

if TYPE_CHECKING:
    from trivium.train.trainer import Trainer

MOST_WHY = 2_000  # characters of an error that an event keeps
BEST, BEST_BITS, OF_AVERAGE = "validation loss", "bits per byte", " of the average"


@dataclass(slots=True)
class Session:
    """What is open while a run trains, and where this launch is."""

    folder: RunFolder
    ranks: Ranks
    engine: Engine
    meter: Meter
    scoring: Scoring
    references: References
    saver: Saver
    cadence: Cadence
    guard: Guard
    row_losses: RowLosses
    compared: Compared
    profiler: Profiler
    watchdog: Watchdog
    sinks: Sinks
    say: Callable[[str], None]  # tell the user something
    shows: bool = True  # whether anything is printed
    started: bool = False  # whether this launch has reported that it started
    entered: int = -1  # the stage that the engine is in
    first_step: bool = False  # whether the next one is the first of its shape in this launch, and may compile
    evaluated_end: int = 0  # the end of the last stage that was evaluated after its last step, or did not ask for it
    scored_at: int = -1  # the step at which tasks were last scored
    last_scores: Scored | None = None
    measured_at: int = 0  # the step at which it was last looked at whether a stage ends on its figure
    saves_now: bool = False  # a save has failed and is due again, or enough minutes are over
    signal: str | None = None  # the signal that told this rank to stop
    best: dict[str, float] = field(default_factory=dict)
    last_evaluation: Evaluated | None = None

    def tell(self, event: Event) -> None:
        """Write an event to the file, the terminal and the trackers."""
        self.sinks.write(event)

    def under_way(self, what: str) -> AbstractContextManager[Any]:
        """Show what takes long, until the block ends."""
        return under_way(what) if self.shows and self.ranks.is_main else nullcontext()

    def failed(self, step: int, error: BaseException) -> None:
        """Report the error that ends this launch, if it had started; stopping on a signal does not count."""
        if self.started and isinstance(error, Exception) and not isinstance(error, StoppedError):
            why = str(error) or type(error).__name__
            self.tell(Failed(step=step, why=" ".join(why.split())[:MOST_WHY]))

    def follow(self, plan: CompletePlan) -> None:
        """Count, keep and compare by another plan from here on."""
        self.meter.plan = self.references.plan = plan
        self.saver.retention = retention_of(plan, self.references)

    def beat(self) -> None:
        """Tell the watchdog of progress: for what takes long without an event."""
        self.watchdog.beat()

    def stop(self, signal: str) -> None:
        """Called by a signal, in the middle of anything: leaves a mark and no more."""
        self.signal = signal

    def evaluated(self, event: Evaluated, *, is_first: bool = True) -> None:
        """Keep and report an evaluation; a better one than all before on the same rows marks the best checkpoint.

        Of several at one step, of the weights and of their average, the first does; each kind has its own best figures.
        """
        before = self.last_evaluation
        if is_first:
            self.last_evaluation = event
        if is_first and before is not None and before.fingerprint != event.fingerprint:
            self.best.clear()
            self.say(f"validation is measured on something else than at step {before.step:,}: the best starts again")
        kind = OF_AVERAGE if event.averaged else ""
        if event.loss is not None and event.loss < self.best.get(BEST + kind, float("inf")):
            self.best[BEST + kind] = event.loss
            if is_first:
                self.saver.best_step = event.step
        if event.bits_per_byte is not None and event.bits_per_byte < self.best.get(BEST_BITS + kind, float("inf")):
            self.best[BEST_BITS + kind] = event.bits_per_byte
        self.tell(event)


@contextmanager
def open_session(trainer: "Trainer") -> Iterator[Session]:
    """Lock the run's folder and make everything that training needs; signals stop the run after a step."""
    ranks = trainer.ranks
    with ranks.watched(), _folder(trainer) as folder, ExitStack() as stack:
        with ranks.as_one():
            if ranks.is_main:
                folder.lock()
        stack.callback(folder.unlock)
        processes = [Process(**each) for each in ranks.gather(asdict(this_process()))]
        stall_seconds = 60 * trainer.config.guard.stall_minutes
        with ranks.as_one():
            engine = run_engine(trainer.plan, trainer.own, trainer.mesh)  # may take long, without a beat
            watchdog = Watchdog(stall_seconds, folder.path / "stacks", ranks.rank, processes, ranks.recorded)
            stack.callback(watchdog.close)  # after all that may hang while it closes
            sinks = Sinks(watchdog.beat)
            stack.callback(sinks.close)
            session = _session(trainer, folder, engine, watchdog, sinks)
            stack.callback(session.row_losses.close)
        if ranks.size == 1:  # of many ranks, those that are left would wait for one that failed
            stack.callback(session.saver.wait)
        trainer.loader.say = session.say
        trainer.loader.stopping = lambda: session.signal is not None
        with stops_on_signals(session.stop):
            yield session
        session.saver.close()
        stack.close()
        ranks.meet()  # a launcher may end all ranks when one has ended


def _session(trainer: "Trainer", folder: RunFolder, engine: Engine, watchdog: Watchdog, sinks: Sinks) -> Session:
    config, plan, ranks = trainer.config, trainer.plan, trainer.ranks
    peak = engine.peak_flops()
    references = References(plan, folder, ranks)

    def say(text: str) -> None:
        sinks.write(Notice(step=trainer.step, text=text))

    session = Session(
        folder=folder,
        ranks=ranks,
        engine=engine,
        meter=Meter(plan, None if peak is None else peak * trainer.mesh.size),
        scoring=Scoring(plan, engine, ranks, lambda stage: trainer.loader.reader_in(stage)),
        references=references,
        saver=Saver(folder, retention_of(plan, references), sinks.write, _mirror(trainer, folder, sinks), ranks),
        cadence=Cadence(config.checkpoint.every),
        guard=Guard(config.guard),
        row_losses=RowLosses(folder.path if ranks.is_main and not trainer.dry_run else None, say),
        profiler=Profiler(_traced_steps(trainer), folder.path / "profile", engine, say),
        compared=Compared(ranks, say, predicted_peaks(trainer)),
        watchdog=watchdog,
        sinks=sinks,
        say=say,
        shows=trainer.show,
    )
    if ranks.is_main:
        with written_to(folder.path):
            sinks.add(EventFile(folder.events))
        name = config.run.name or "run"
        sinks.add(*trackers(config.track, folder.path, folder.events, name, raw_config(config), say))
        sinks.add(*_screens(trainer, session))
    return session


def _screens(trainer: "Trainer", session: Session) -> list[Sink]:
    """The run's log file, which a dry run has not, and what is printed."""
    launch = Launch(
        plan=lambda: trainer.plan,
        end=lambda: trainer.plan.total_steps if trainer.until is None else min(trainer.until, trainer.plan.total_steps),
        validation=lambda: session.last_evaluation,
        folder=session.folder.path,
        keeps=not trainer.dry_run,
        loaded=trainer.loaded,
    )
    every = trainer.config.track.every
    log: list[Sink] = [] if trainer.dry_run else [RunLog(launch, every)]
    return [*log, terminal_view(launch, every)] if trainer.show else log


def retention_of(plan: CompletePlan, references: References) -> Retention:
    """Which checkpoints of a plan's run stay."""
    boundaries = references.boundaries | {stage.start for stage in plan.stages if stage.start}
    kept = plan.config.checkpoint
    return Retention(kept.keep, boundaries, plan.total_steps, kept.keep_every)


def _traced_steps(trainer: "Trainer") -> range:
    """The steps that this rank traces: rank 0 those that the config names."""
    profile = trainer.config.engine.profile
    return range(*profile.steps) if profile is not None and trainer.ranks.is_main else range(0)


def predicted_peaks(trainer: "Trainer") -> PredictedPeaks | None:
    """The predicted memory of every stage, where a device's is measured; a model of the user's own has none."""
    own = trainer.own
    by_config = trainer.plan.makes_model is not None or any(stage.config.loss for stage in trainer.plan.stages)
    is_own = own.loss or not isinstance(own.optimizer, str | None)
    if by_config or is_own or not trainer.ranks.is_main or device_memory() is None:
        return None
    return PredictedPeaks(trainer.plan, trainer.ranks.size)


@contextmanager
def _folder(trainer: "Trainer") -> Iterator[RunFolder]:
    """The run's folder; of a dry run a temporary one that all ranks see, deleted when all are through."""
    parent = Path(trainer.config.run.folder)
    if not trainer.dry_run:
        yield RunFolder(parent / (trainer.config.run.name or "run"))
        return
    # Many ranks may be on many machines: they meet where the run's own folder would be.
    beside = next(each for each in (parent, *parent.absolute().parents) if each.is_dir())
    with ExitStack() as stack:
        path = None
        if trainer.ranks.is_main:
            inside = None if trainer.ranks.size == 1 else beside
            path = stack.enter_context(tempfile.TemporaryDirectory(prefix=".dry-run-", dir=inside))
        yield RunFolder(Path(trainer.ranks.share(path) or ""))


def _mirror(trainer: "Trainer", folder: RunFolder, sinks: Sinks) -> Mirror | None:
    """The second place for checkpoints, where the config names one."""
    target = trainer.config.checkpoint.copy_to
    if target is None or trainer.dry_run:
        return None

    def failed(checkpoint: Checkpoint, why: str) -> None:
        sinks.write(Notice(step=checkpoint.step, text=f"not copied to {target}: {why}"))

    return Mirror(folder, RunFolder(Path(target) / (trainer.config.run.name or "run")), failed)

"""One launch of a run: its folder locked, its parts made, its sinks open; and how it begins."""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from trivium.ask.convert import readable_weights
from trivium.run.events import EventFile, Said, Started
from trivium.run.folder import Checkpoint, RunFolder, written_to
from trivium.run.mirror import Mirror
from trivium.run.saver import Retention, Saver
from trivium.run.versions import versions
from trivium.train.cadence import Cadence, stops_on_signals
from trivium.train.meter import Meter
from trivium.train.references import References
from trivium.train.scoring import Scoring
from trivium.train.setup import init_folder, larger_micro_batch, refuse_damaged_init, run_engine
from trivium.train.state import engine_facts, raw_config
from trivium.train.terminal import terminal_view
from trivium.train.track import tracker_sinks
from trivium.train.watchdog import Process, Watchdog, this_process

if TYPE_CHECKING:
    from trivium.train.trainer import Trainer


@contextmanager
def session(trainer: "Trainer") -> Iterator[None]:
    """The run's folder, locked; its parts, made; signals that stop it after a step."""
    name = trainer.config.run.name or "run"
    with trainer.ranks.watched(), _folder(trainer, name) as trainer.folder:
        processes = trainer.ranks.gather(this_process())
        with trainer.ranks.as_one():
            if trainer.ranks.is_main:
                trainer.folder.lock()
        try:
            with trainer.ranks.as_one():
                _set_up(trainer, name, processes)
            with stops_on_signals(trainer.stop):
                yield
            trainer.saver.close()
        finally:
            if trainer.watchdog is not None:
                trainer.watchdog.close()
            trainer.close_batches()
            for sink in trainer.sinks:
                sink.close()
            trainer.sinks = []
            trainer.folder.unlock()
        trainer.ranks.meet()  # a launcher may end all ranks when one has ended


def initial_weights(trainer: "Trainer") -> None:
    """Take the weights that `model.init` names, with the optimizer's state where asked; else they are the seed's."""
    with trainer.ranks.as_one():
        folder = init_folder(trainer.config)
        if folder is not None:
            refuse_damaged_init(folder, trainer.ranks)
    if folder is None:
        return
    warm = trainer.config.model.init_optimizer
    scratch = trainer.folder.path / ".weights"
    with (
        readable_weights(folder, trainer.config.engine.name, scratch, trainer.ranks) as readable,
        trainer.ranks.as_one(),
    ):
        (trainer.engine.load if warm else trainer.engine.start_from)(readable)
    trainer.tell(Said(step=0, text=f"weights {'and optimizer ' if warm else ''}from {folder}"))
    warning = larger_micro_batch(trainer.config, folder)
    if warning is not None:
        trainer.tell(Said(step=0, text=warning))


def start_of(trainer: "Trainer", *, resumed: bool, changes: Mapping[str, str]) -> Started:
    """What is told of a launch before its first step."""
    return Started(
        step=trainer.step,
        run=trainer.config.run.name or "run",
        resumed=resumed,
        total_steps=trainer.plan.total_steps or 0,
        world_size=trainer.ranks.size,
        versions=versions(),
        settings=engine_facts(trainer),
        changes=dict(changes),
        lineage=trainer.folder.lineage,
    )


@contextmanager
def _folder(trainer: "Trainer", name: str) -> Iterator[RunFolder]:
    """The run's folder; of a dry run a scratch one, which all ranks see and which is gone when all are through."""
    where = Path(trainer.config.run.folder)
    if not trainer.dry_run:
        yield RunFolder(where / name)
        return
    # Many ranks may be on many machines: they meet where the run's own folder would be.
    beside = next(each for each in (where, *where.absolute().parents) if each.is_dir())
    with ExitStack() as stack:
        path = None
        if trainer.ranks.is_main:
            inside = None if trainer.ranks.size == 1 else beside
            path = stack.enter_context(tempfile.TemporaryDirectory(prefix=".dry-run-", dir=inside))
        yield RunFolder(Path(trainer.ranks.share(path) or ""))


def _set_up(trainer: "Trainer", name: str, processes: Sequence[Process]) -> None:
    config, plan, ranks = trainer.config, trainer.plan, trainer.ranks
    optimizer = trainer.optimizer()
    own = None if isinstance(optimizer, str) else optimizer
    trainer.engine, spec = run_engine(config, plan, own, trainer.mesh)
    peak = trainer.engine.peak_flops()
    trainer.meter = Meter(plan, spec, None if peak is None else peak * trainer.mesh.size)
    trainer.scoring = Scoring(config, spec, min(stage.seq_len for stage in plan.stages))
    trainer.references = References(plan, spec, trainer.folder)
    starts = frozenset(stage.start for stage in plan.stages if stage.start)
    boundaries = starts | trainer.references.boundaries
    retention = Retention(config.checkpoint.keep, boundaries, plan.total_steps or 0, config.checkpoint.keep_every)
    trainer.saver = Saver(trainer.folder, retention, trainer.tell, _mirror(trainer, name), ranks)
    stacks = trainer.folder.path / "stacks"
    trainer.watchdog = Watchdog(60 * config.guard.stall_minutes, stacks, ranks.rank, processes)
    trainer.cadence = Cadence(config.checkpoint.every, ranks)
    if ranks.is_main:
        _open_sinks(trainer, name)


def _open_sinks(trainer: "Trainer", name: str) -> None:
    with written_to(trainer.folder.path):
        trainer.sinks = [EventFile(trainer.folder.events)]
    trackers = trainer.config.track.trackers
    trainer.sinks += tracker_sinks(trackers, trainer.folder.path, name, raw_config(trainer.config))
    if trainer.show:
        trainer.sinks.append(terminal_view(trainer.plan, trainer.config.track.every))


def _mirror(trainer: "Trainer", name: str) -> Mirror | None:
    """The second place for checkpoints, where the config names one."""
    said = trainer.config.checkpoint.copy_to
    if said is None or trainer.dry_run:
        return None

    def failed(checkpoint: Checkpoint, why: str) -> None:
        trainer.tell(Said(step=checkpoint.step, text=f"not copied to {said}: {why}"))

    return Mirror(RunFolder(Path(said) / name), failed)

"""One launch of a run: its folder locked, its parts made, its sinks open; and how it begins."""

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import tomli_w

from trivium.plan.export import plan_json
from trivium.train.cadence import Cadence, stops_on_signals
from trivium.train.checkpoint import Retention, Saver
from trivium.train.convert import readable_weights
from trivium.train.events import EventFile, Said, Started
from trivium.train.meter import Meter
from trivium.train.mirror import Mirror
from trivium.train.reference import References
from trivium.train.run_folder import Checkpoint, RunFolder
from trivium.train.setup import init_folder, larger_micro_batch, run_engine
from trivium.train.state import engine_facts, raw_config
from trivium.train.terminal import terminal_view
from trivium.train.track import tracker_sinks
from trivium.train.versions import versions
from trivium.train.watchdog import Watchdog

if TYPE_CHECKING:
    from trivium.train.trainer import Trainer


@contextmanager
def session(trainer: "Trainer") -> Iterator[None]:
    """The run's folder, locked; its parts, made; signals that stop it after a step."""
    name = trainer.config.run.name or "run"
    with trainer.ranks.watched(), tempfile.TemporaryDirectory() as scratch:
        trainer.folder = RunFolder(Path(scratch) if trainer.dry_run else Path(trainer.config.run.folder) / name)
        with trainer.ranks.as_one():
            if trainer.ranks.speaks:
                trainer.folder.lock()
        try:
            with trainer.ranks.as_one():
                _set_up(trainer, name)
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


def fetch(trainer: "Trainer", mirror: RunFolder) -> None:
    """Take the last checkpoint from the second place, where the run's own folder has none."""
    for checkpoint in mirror.checkpoints()[-1:]:
        trainer.folder.take(checkpoint)
        trainer.tell(Said(step=0, text=f"checkpoint of step {checkpoint.step:,} copied from {mirror.path}"))


def initial_weights(trainer: "Trainer") -> None:
    """Take the weights that `model.init` names, with the optimizer's state where asked; else they are the seed's."""
    with trainer.ranks.as_one():
        folder = init_folder(trainer.config)
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


def _set_up(trainer: "Trainer", name: str) -> None:
    config, plan, ranks = trainer.config, trainer.plan, trainer.ranks
    optimizer = trainer.optimizer()
    own = None if isinstance(optimizer, str) else optimizer
    trainer.engine, spec = run_engine(config, plan, own, trainer.mesh)
    peak = trainer.engine.peak_flops()
    trainer.meter = Meter(plan, spec, None if peak is None else peak * trainer.mesh.size)
    trainer.references = References(plan, spec, trainer.folder)
    starts = frozenset(stage.start for stage in plan.stages if stage.start)
    boundaries = starts | trainer.references.boundaries
    retention = Retention(config.checkpoint.keep, boundaries, plan.total_steps or 0, config.checkpoint.milestones)
    trainer.saver = Saver(trainer.folder, retention, trainer.tell, _mirror(trainer, name), ranks)
    stacks = trainer.folder.path / "stacks" / f"rank-{ranks.rank}.txt"
    trainer.watchdog = Watchdog(60 * config.guard.stall_minutes, stacks)
    trainer.cadence = Cadence(config.checkpoint.every, ranks)
    if ranks.speaks:
        _open_sinks(trainer, name)


def _open_sinks(trainer: "Trainer", name: str) -> None:
    raw = raw_config(trainer.config)
    trainer.folder.write_plan(tomli_w.dumps(raw), plan_json(trainer.plan))
    trainer.sinks = [EventFile(trainer.folder.events)]
    trainer.sinks += tracker_sinks(trainer.config.track.sinks, trainer.folder.path, name, raw)
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

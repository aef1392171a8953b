"""Two steps of every stage at its real shapes, today, so that stage three does not run out of memory next week."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from trivium.plan.stage import CompleteStage
from trivium.train.loop import Loop
from trivium.train.meter import peak_memory
from trivium.train.trainer import Trainer

REHEARSED_STEPS = 2


def rehearse_run(
    config: Path, overrides: Sequence[str], console: Console, *, dialect: str | None, world_size: int | None
) -> None:
    """Go through every stage in a temporary folder: steps, an evaluation, a save, a load."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for header in ("stage", "rows x length", "seconds a step", "evaluation", "save", "load", "peak memory"):
        table.add_column(header, justify="left" if header == "stage" else "right")
    trainer = Trainer(config, overrides, dialect=dialect, world_size=world_size, dry_run=True, show=False)
    with trainer.open_session() as session:
        trainer.load()
        loop = Loop(trainer, session)
        for stage in trainer.plan.stages:
            # Within the dry run's folder, which all ranks see: they may be on many machines.
            table.add_row(*_rehearse_stage(loop, stage, session.folder.path / f"rehearsed-{stage.index}"))
        trainer.ranks.meet()  # rank 0 deletes the folder when all are through
    if trainer.ranks.is_main:
        console.print(table)


def _rehearse_stage(loop: Loop, stage: CompleteStage, folder: Path) -> tuple[str, ...]:
    trainer = loop.trainer
    trainer.step = stage.start
    trainer.loader.streams.jump(stage.start)
    loop.begin_stage(stage.start)
    steps = range(stage.start, min(stage.end, stage.start + REHEARSED_STEPS))
    started = time.perf_counter()
    for step in steps:
        trainer.train_step(trainer.loader.batch(step), trainer.settings_at(step))
    seconds = (time.perf_counter() - started) / len(steps)
    timed = [_timed(trainer.evaluate)]
    timed.append(_timed(lambda: trainer.engine.save(folder, background=False).wait()))
    timed.append(_timed(lambda: trainer.engine.load(folder)))
    shape = f"{stage.batch_size:,} x {stage.seq_len:,}"
    return stage.name, shape, f"{seconds:.3f}", *timed, f"{peak_memory() / 1e9:.2f} GB"


def _timed(act: Callable[[], object]) -> str:
    started = time.perf_counter()
    act()
    return f"{time.perf_counter() - started:.3f}"

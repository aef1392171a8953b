"""Two steps of every stage at its real shapes, today, so that stage three does not run out of memory next week."""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from trivium.engine.devices import reported_device
from trivium.engine.memory import DeviceMemory, device_memory
from trivium.forecast.machine import refuse_price
from trivium.plan.stage import CompleteStage
from trivium.screen import Detail, detail, echo_line, printing, under_way
from trivium.train.loop import Loop
from trivium.train.meter import peak_memory
from trivium.train.trainer import Trainer

REHEARSED_STEPS = 2
GB = 1e9


@dataclass(frozen=True, slots=True)
class Rehearsed:
    """What a stage took; memory is what tensors held on the device where there is one, else the process' so far."""

    stage: CompleteStage
    size: int  # rows of the steps that were taken
    step_seconds: float  # of the last step: the first one warms up
    evaluation: float
    save: float
    load: float
    memory: int
    reserved: int = 0  # taken from the device
    retries: int = 0  # of its allocator
    predicted: int | None = None

    @property
    def seconds(self) -> float:
        """Of all the stage's steps, by their rows."""
        return self.step_seconds * self.stage.rows / self.size


def rehearse_run(
    config: Path,
    overrides: Sequence[str],
    console: Console,
    *,
    dialect: str | None,
    world_size: int | None,
    price: float | None = None,
) -> None:
    """Go through every stage in a temporary folder: steps, an evaluation, a save, a load.

    `price` is that of an hour of a device; absent: a known device's own.
    """
    refuse_price(price)
    trainer = Trainer(config, overrides, dialect=dialect, world_size=world_size, dry_run=True, show=False)
    stages = trainer.plan.stages
    found: list[Rehearsed] = []
    with trainer.open_session() as session:
        trainer.load()
        loop = Loop(trainer, session)
        for stage in stages:
            # Within the dry run's folder, which all ranks see: they may be on many machines.
            folder = session.folder.path / f"rehearsed-{stage.index}"
            with _shown(trainer, stage) as done:
                found.append(_rehearse_stage(loop, stage, folder, done))
        trainer.ranks.meet()  # rank 0 deletes the folder when all are through
    if trainer.ranks.is_main:
        peaks = trainer.session.compared.predicted
        if peaks is not None:
            predicted = peaks.wait()
            found = [replace(each, predicted=predicted.of(each.stage.index)) for each in found]
        show_rehearsed(found, trainer.mesh.size, device_memory(), console, price)


@contextmanager
def _shown(trainer: Trainer, stage: CompleteStage) -> Iterator[Callable[[float], None]]:
    """Say which stage is rehearsed: a line in a pipe, a bar in a terminal."""
    title = f"rehearsing {stage.name}, stage {stage.index + 1} of {len(trainer.plan.stages)}"
    if trainer.ranks.is_main and detail() is not Detail.QUIET and not sys.stderr.isatty():
        echo_line(title, err=True)
        with printing(Detail.QUIET), under_way(title) as done:
            yield done
        return
    with under_way(title) as done:
        yield done


def _rehearse_stage(loop: Loop, stage: CompleteStage, folder: Path, done: Callable[[float], None]) -> Rehearsed:
    trainer = loop.trainer
    largest = stage.largest_since(trainer.plan.decided_from)
    first = stage.start + largest.step
    trainer.step = stage.start
    trainer.loader.streams.jump(first)
    loop.begin_stage(stage.start)
    device_memory(reset=True)  # of steps alone
    for step in range(first, min(stage.end, first + REHEARSED_STEPS)):
        started = time.perf_counter()
        trainer.train_step(trainer.loader.batch(step), trainer.settings_at(step))
        step_seconds = time.perf_counter() - started
        done((step + 1 - first) / (REHEARSED_STEPS + 3))
    device = device_memory()
    evaluation = _timed(trainer.evaluate)
    done((REHEARSED_STEPS + 1) / (REHEARSED_STEPS + 3))
    save = _timed(lambda: trainer.engine.save(folder, background=False).wait())
    load = _timed(lambda: trainer.engine.load(folder))
    own = [peak_memory(), 0, 0] if device is None else [device.active, device.reserved, device.retries]
    memory, reserved, retries = map(max, zip(*trainer.ranks.gather(own), strict=True))
    return Rehearsed(stage, largest.size, step_seconds, evaluation, save, load, memory, reserved, retries)


def _timed(act: Callable[[], object]) -> float:
    started = time.perf_counter()
    act()
    return time.perf_counter() - started


def show_rehearsed(
    found: Sequence[Rehearsed],
    devices: int,
    device: DeviceMemory | None,
    console: Console,
    price: float | None = None,
) -> None:
    """Print what every stage took, the tightest one, and the hours and the cost of the whole run."""
    headers = ["stage", "rows x length", "seconds a step", "evaluation", "save", "load"]
    headers += ["process memory"] if device is None else ["active", "reserved", "retries"]
    if any(each.predicted is not None for each in found):
        headers += ["predicted", "error"]
    table = Table(box=None, pad_edge=False, header_style="dim")
    for header in headers:
        table.add_column(header, justify="left" if header == "stage" else "right")
    for each in found:
        shape = f"{each.size:,} x {each.stage.seq_len:,}"
        times = (f"{seconds:.3f}" for seconds in (each.step_seconds, each.evaluation, each.save, each.load))
        more = [] if device is None else [f"{each.reserved / GB:.2f} GB", f"{each.retries:,}"]
        table.add_row(each.stage.name, shape, *times, f"{each.memory / GB:.2f} GB", *more, *_prediction(each))
    console.print(table)
    known = None if device is None else reported_device(device.name)
    if price is None and known is not None:
        price = known.price
    for line in closing_lines(found, devices, device, price):
        console.print(Text(line), highlight=False)


def _prediction(each: Rehearsed) -> list[str]:
    if each.predicted is None:
        return []
    return [f"{each.predicted / GB:.2f} GB", f"{each.predicted / each.memory - 1:+.1%}"]


def closing_lines(
    found: Sequence[Rehearsed], devices: int, device: DeviceMemory | None, price: float | None
) -> list[str]:
    """`tightest: long, 61.20 GB of 84.8 GB`; `whole run: 12.3 hours of steps, 98.4 device hours, about $246`."""
    tightest = max(found, key=lambda each: each.memory)
    of = "" if device is None else f" of {device.total / GB:.1f} GB"
    hours = sum(each.seconds for each in found) / 3600
    parts = [f"{hours:.3g} hours of steps"]
    if devices > 1 or device is not None:
        parts.append(f"{hours * devices:.3g} device hours")
    if price is not None:
        parts.append(f"about ${hours * devices * price:,.2f} at ${price:.2f} an hour")
    longest = "whole run at its longest" if any(each.stage.may_end_early for each in found) else "whole run"
    return [f"tightest: {tightest.stage.name}, {tightest.memory / GB:.2f} GB{of}", f"{longest}: {', '.join(parts)}"]

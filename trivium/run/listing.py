"""A folder of runs -> one line each: stage, state and lineage."""

from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from trivium.errors import ResumeError, UsageError
from trivium.paths import suggestion
from trivium.run.folder import LINEAGE, RunFolder
from trivium.run.glance import RunGlance
from trivium.screen import one_line


@dataclass(frozen=True, slots=True)
class RunState:
    """One line of the list: where a run is."""

    name: str
    state: str  # running, finished, stopped, failed, broken off, or new
    step: int
    total_steps: int | None  # None before its first launch
    stage: str
    loss: float | None
    checkpoint: int | None  # the last one that is not damaged
    damaged: tuple[int, ...]  # those after it, by step
    lineage: str


def list_runs(folder: Path) -> list[RunState]:
    return [run_state(path) for path in run_folders(folder)]


def run_folders(folder: Path) -> list[Path]:
    """The folders of runs in a folder, by name."""
    if not folder.is_dir():
        raise UsageError(f"{folder}: is not a folder.{suggestion(folder)} Give the one that run.folder names.")
    return [path for path in sorted(folder.iterdir()) if is_run(path)]


def is_run(path: Path) -> bool:
    """Whether a folder is a run's; a fork that has not been started has no plan yet."""
    return any((path / mark).is_file() for mark in ("plan.json", LINEAGE))


def run_state(path: Path) -> RunState:
    glance = RunGlance(path)
    glance.update()
    checkpoint, damaged = _last_whole(glance.folder)
    return RunState(
        name=path.name,
        state=glance.state,
        step=glance.step or checkpoint or 0,
        total_steps=glance.total_steps,
        stage=glance.stage,
        loss=None if glance.last is None else glance.last.loss,
        checkpoint=checkpoint,
        damaged=damaged,
        lineage=_shown_lineage(glance.folder),
    )


def _last_whole(folder: RunFolder) -> tuple[int | None, tuple[int, ...]]:
    """The step of the last checkpoint whose files have the sizes that COMPLETE lists, and of those after it."""
    damaged: list[int] = []
    for checkpoint in reversed(folder.checkpoints()):
        if checkpoint.verify(hash_of=None) is None:
            return checkpoint.step, tuple(damaged)
        damaged.append(checkpoint.step)
    return None, tuple(damaged)


def _shown_checkpoints(run: RunState) -> str:
    """`400`, or `400 (450 damaged)`."""
    whole = "" if run.checkpoint is None else f"{run.checkpoint:,}"
    if not run.damaged:
        return whole
    return f"{whole or 'none'} ({', '.join(f'{step:,}' for step in run.damaged)} damaged)"


def _shown_lineage(folder: RunFolder) -> str:
    try:
        lineage = folder.lineage
    except ResumeError:  # one run's damage must not hide the others
        return f"{LINEAGE} is corrupt"
    return "" if lineage is None else f"{lineage['run']} at {lineage['step']:,}"


def show_runs(runs: list[RunState], console: Console) -> None:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for header in ("run", "state", "step", "of", "stage", "loss", "checkpoint", "forked from"):
        table.add_column(header, justify="right" if header in ("step", "of", "loss", "checkpoint") else "left")
    for run in runs:
        table.add_row(
            one_line(run.name),
            run.state,
            f"{run.step:,}",
            "" if run.total_steps is None else f"{run.total_steps:,}",
            one_line(run.stage),
            "" if run.loss is None else f"{run.loss:.4f}",
            _shown_checkpoints(run),
            one_line(run.lineage),
        )
    console.print(table)

"""Checkpoints of a run: one save at a time, whole or absent, and which of them stay.

`save` returns when training may go on; a thread waits for the engine's files, adds the run's state and
commits. What was left of a save that failed is a draft, which the next one clears away. Of many ranks all write
their parts; rank 0 commits, once all of these are whole.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trivium.engine.base import Engine
from trivium.engine.ranks import Ranks
from trivium.errors import Problem, ResumeError
from trivium.train.events import Saved
from trivium.train.run_folder import Checkpoint, RunFolder


@dataclass(frozen=True, slots=True)
class Retention:
    """Which checkpoints stay: the last ones, stage boundaries, milestones, the best by a figure, the final one."""

    keep: int
    boundaries: frozenset[int]
    total_steps: int
    milestones: int | None = None

    def kept(self, steps: list[int], best: int | None) -> set[int]:
        """The steps whose checkpoints stay."""
        always = self.boundaries | {self.total_steps} | ({best} if best is not None else set())
        milestones = {step for step in steps if self.milestones is not None and step % self.milestones == 0}
        return set(steps[-self.keep :]) | (always & set(steps)) | milestones


class Saver:
    """Writes a run's checkpoints, one after the other."""

    def __init__(
        self, folder: RunFolder, retention: Retention, tell: Callable[[Saved], None], ranks: Ranks | None = None
    ) -> None:
        self.folder = folder
        self.ranks = ranks or Ranks()
        self.retention = retention
        self._tell = tell
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None
        self.best_step: int | None = None

    def save(self, engine: Engine, step: int, state: dict[str, Any], reason: str, *, background: bool) -> None:
        """Write a checkpoint of this step; waits for the one before."""
        self.wait()
        started = time.perf_counter()
        if self.ranks.speaks:
            self.folder.fresh_draft(step)
        self.ranks.meet()  # no rank writes before the draft is empty
        handle = engine.save(self.folder.draft_path(step) / "engine", background=background)

        def commit() -> None:
            try:
                written = handle.wait()
                if not self.ranks.speaks:
                    return
                checkpoint = self.folder.commit(step, state, written)
                size = sum(file["bytes"] for file in checkpoint.files().values())
                seconds = time.perf_counter() - started
                self._tell(Saved(step=step, path=str(checkpoint.path), bytes=size, seconds=seconds, reason=reason))
                steps = [each.step for each in self.folder.checkpoints()]
                self.folder.keep_only(self.retention.kept(steps, self.best_step))
            except BaseException as failure:
                self._failure = failure

        if background:
            self._thread = threading.Thread(target=commit, name="trivium-saver")
            self._thread.start()
        else:
            commit()
            self.wait()

    def wait(self) -> None:
        """Return when the last save is complete; raise what went wrong in it."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure


def last_sound(folder: RunFolder, tell: Callable[[Problem], None], ranks: Ranks | None = None) -> Checkpoint | None:
    """The last checkpoint whose files are as they were written; one that is not is named and passed over.

    Of many ranks each looks at some of the files, and all come to the same end.
    """
    ranks = ranks or Ranks()
    for checkpoint in reversed(ranks.share(folder.checkpoints())):
        faults = ranks.gather(checkpoint.verify(ranks.rank, ranks.size))
        fault = next((fault for fault in faults if fault is not None), None)
        if fault is None:
            return checkpoint
        tell(Problem(str(checkpoint.path), f"is damaged ({fault}); the checkpoint before it is used."))
    return None


def find_checkpoint(path: Path, step: int | None) -> Checkpoint:
    """A run's checkpoint by its step, or its last one; also given the checkpoint's own folder."""
    if (path / "state.json").is_file():
        return Checkpoint(int(path.name.removeprefix("step-")), path)
    found = RunFolder(path).checkpoints()
    if not found:
        raise ResumeError(f"{path}: has no checkpoint. Give a run's folder, or one of its checkpoints.")
    if step is None:
        return found[-1]
    by_step = {checkpoint.step: checkpoint for checkpoint in found}
    if step not in by_step:
        known = ", ".join(f"{each:,}" for each in by_step)
        raise ResumeError(f"{path}: has no checkpoint of step {step:,}. There is: {known}.")
    return by_step[step]

"""Checkpoints of a run: one save at a time, whole or absent, and which of them stay.

`save` returns when training may continue; a thread waits for the engine's files, adds the run's state and
commits. A save that fails (a full disk) leaves the checkpoints before it as they are, is reported, and is tried
again after a pause that doubles each time. Of many ranks all write their parts; rank 0 commits, once all of these
are whole, and alone reports what failed and when to try again. A save in the foreground is over for all at once.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from trivium.config.schema import Cadence as CadenceConfig
from trivium.engine.base import Engine, SaveHandle
from trivium.engine.ranks import Ranks
from trivium.errors import SaveError
from trivium.run.events import Saved, SaveFailed
from trivium.run.folder import RunFolder
from trivium.run.mirror import Mirror

FIRST_PAUSE, LONGEST_PAUSE = 30.0, 600.0  # seconds before a save that failed is tried again
THREAD = "trivium-saver"


@dataclass(frozen=True, slots=True)
class Retention:
    """Which checkpoints stay: the last ones, stage boundaries, milestones, the best by a figure, the final one."""

    keep: int
    boundaries: frozenset[int]
    total_steps: int
    milestones: int | None = None

    def kept(self, steps: list[int], best: int | None) -> set[int]:
        always = self.boundaries | {self.total_steps} | ({best} if best is not None else set())
        milestones = {step for step in steps if self.milestones is not None and step % self.milestones == 0}
        return set(steps[-self.keep :]) | (always & set(steps)) | milestones


class Cadence:
    """When a checkpoint is due: every n steps, or every n minutes."""

    def __init__(self, every: CadenceConfig | None) -> None:
        self._steps = None if every is None else every.steps
        self._minutes = None if every is None else every.minutes
        self._last = time.monotonic()

    def due(self, steps: int) -> bool:
        """Whether a checkpoint is due after this many steps."""
        return self._steps is not None and steps % self._steps == 0

    def minutes_over(self) -> bool:
        """Whether one is due by this rank's clock; it starts again then. Clocks differ: one rank's decides."""
        if self._minutes is None or (time.monotonic() - self._last) / 60 < self._minutes:
            return False
        self._last = time.monotonic()
        return True


class Saver:
    """Writes a run's checkpoints, one after the other; a save that fails is reported and tried again."""

    def __init__(
        self,
        folder: RunFolder,
        retention: Retention,
        tell: Callable[[Saved | SaveFailed], None],
        mirror: Mirror | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        self.folder = folder
        self.ranks = ranks or Ranks()
        self.retention = retention
        self.mirror = mirror
        self.best_step: int | None = None
        self._tell = tell
        self._thread: threading.Thread | None = None
        self._failure: Exception | None = None
        self._pause = FIRST_PAUSE
        self._try_again_at: float | None = None

    @property
    def wants_to_try_again(self) -> bool:
        """Whether the last save failed, and its pause is over."""
        return self._try_again_at is not None and time.monotonic() >= self._try_again_at

    def save(
        self,
        engine: Engine,
        step: int,
        state: dict[str, Any],
        reason: str,
        *,
        background: bool = False,
        must_succeed: bool = False,
    ) -> None:
        """Write a checkpoint of this step; waits for the one before. SaveError where one that must succeed fails."""
        self.wait()
        self._failure = None
        started = time.perf_counter()

        def write() -> None:
            self._open_draft(step)
            handle = engine.save(self.folder.draft_path(step) / "engine", background=background)
            if background:
                self._thread = threading.Thread(target=lambda: attempt(lambda: commit(handle)), name=THREAD)
                self._thread.start()
            else:
                commit(handle)

        def commit(handle: SaveHandle) -> None:
            written = handle.wait()
            if not self.ranks.is_main:
                return
            checkpoint = self.folder.commit(step, state, written)
            size = sum(file["bytes"] for file in checkpoint.files().values())
            seconds = time.perf_counter() - started
            self._tell(Saved(step=step, path=str(checkpoint.path), bytes=size, seconds=seconds, reason=reason))
            self._tidy()
            self._try_again_at, self._pause = None, FIRST_PAUSE

        def attempt(act: Callable[[], None]) -> None:
            try:
                act()
            except Exception as failure:  # a full disk shows itself in many ways; training continues whatever it is
                self._failed(step, reason, failure)

        attempt(write)
        if not background:
            self._settle(step, reason, must_succeed=must_succeed)

    def wait(self) -> None:
        """Return when the last save is complete, or has failed."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def close(self) -> None:
        """Return when everything is written and copied."""
        self.wait()
        if self.mirror is not None:
            self.mirror.wait()

    def _open_draft(self, step: int) -> None:
        """An empty draft, before any rank writes into it; where it cannot be made, the save fails on all ranks."""
        why = None
        if self.ranks.is_main:
            try:
                self.folder.fresh_draft(step)
            except OSError as failure:
                why = str(failure)
        why = self.ranks.share(why)
        if why is not None:
            raise OSError(why)

    def _settle(self, step: int, reason: str, *, must_succeed: bool) -> None:
        """Return when rank 0 has committed, since a stage may begin by reading it; all ranks end where it must be."""
        with self.ranks.as_one():
            if must_succeed and self._failure is not None:
                raise SaveError(
                    f"{self.folder.checkpoints_folder}: the checkpoint of step {step:,} ({reason}) cannot be written: "
                    f"{self._failure}. Make room, and start the run again: it resumes from its last checkpoint."
                ) from self._failure

    def _failed(self, step: int, reason: str, failure: Exception) -> None:
        self._failure = failure
        if not self.ranks.is_main:
            return
        self.folder.drop_draft(step)  # gives back the room it took
        self._try_again_at = time.monotonic() + self._pause
        self._pause = min(2 * self._pause, LONGEST_PAUSE)
        self._tell(SaveFailed(step=step, why=str(failure), reason=reason))

    def _tidy(self) -> None:
        best = self.best_step

        def kept(steps: list[int]) -> set[int]:
            return self.retention.kept(steps, best)

        self.folder.keep_only(kept([each.step for each in self.folder.checkpoints()]))
        if self.mirror is not None:
            self.mirror.copy(self.folder.checkpoints(), kept)

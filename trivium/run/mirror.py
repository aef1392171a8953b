"""A second place for a run's checkpoints and decisions, copied there in the background.

Copies are whole or absent, as the originals are. The second place has the retention of the run's own, over the copies
that it holds: milestones and boundaries stay there when the run's own folder is lost. The oldest are copied first, so
that the references of a stage with KL arrive before what needs them. A copy that fails is reported and tried again
with the next checkpoint; training never waits for it but at the run's end.
"""

import threading
from collections.abc import Callable

from trivium.errors import ResumeError
from trivium.run.decisions import copy_decisions
from trivium.run.folder import COMPLETE, Checkpoint, RunFolder

Kept = Callable[[list[int]], set[int]]  # of a folder's steps, those that stay


class Mirror:
    """Copies checkpoints to a second run folder."""

    def __init__(self, folder: RunFolder, target: RunFolder, failed: Callable[[Checkpoint, str], None]) -> None:
        self.folder = folder
        self.target = target
        self._failed = failed
        self._wanted: tuple[list[Checkpoint], Kept] | None = None
        self._is_clear = False
        self._condition = threading.Condition()
        self._thread: threading.Thread | None = None

    def copy(self, checkpoints: list[Checkpoint], kept: Kept) -> None:
        """Bring the second place up to these, the oldest first; replaces what was asked before and has not begun."""
        with self._condition:
            self._wanted = checkpoints, kept
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="trivium-mirror", daemon=True)
                self._thread.start()

    def wait(self) -> None:
        """Return when everything asked for is copied, or has failed."""
        thread = self._thread
        if thread is not None:
            thread.join()

    def _work(self) -> None:
        while True:
            with self._condition:
                if self._wanted is None:
                    self._thread = None
                    return
                (checkpoints, kept), self._wanted = self._wanted, None
            self._bring(checkpoints, kept)

    def _bring(self, checkpoints: list[Checkpoint], kept: Kept) -> None:
        current = checkpoints[-1]
        try:
            if not self._is_clear:
                self.target.clear_up()  # what an earlier launch that was killed has left there
                self._is_clear = True
            copy_decisions(self.folder, self.target)
            for current in checkpoints:
                self._copy(current)
            self._prune(current.step, kept)
        except Exception as failure:  # a full or absent second place must never end a run
            self._failed(current, str(failure))

    def _copy(self, checkpoint: Checkpoint) -> None:
        """Copy a checkpoint that the second place lacks; nothing where retention has removed it in the meantime."""
        try:
            if not self._is_there(checkpoint):
                self.target.take(checkpoint)
        except (OSError, ResumeError):
            if (checkpoint.path / COMPLETE).is_file():
                raise
            self.target.drop_copy(checkpoint)

    def _prune(self, last: int, kept: Kept) -> None:
        """Remove what retention does not keep; copies of later steps than the run has now are left alone."""
        steps = [each.step for each in self.target.checkpoints()]
        later = [step for step in steps if step > last]
        self.target.keep_only((*kept([step for step in steps if step <= last]), *later))

    def _is_there(self, checkpoint: Checkpoint) -> bool:
        """Whether the second place has this one, and not another of the same step."""
        copy = self.target.checkpoints_folder / checkpoint.path.name / COMPLETE
        return copy.is_file() and copy.read_bytes() == (checkpoint.path / COMPLETE).read_bytes()

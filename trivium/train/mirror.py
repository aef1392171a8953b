"""A second place for a run's checkpoints, copied there in the background.

Copies are whole or absent, as the originals are, and follow their retention. A copy that fails is told of and
tried again with the next checkpoint; training never waits for it but at the run's end.
"""

import threading
from collections.abc import Callable

from trivium.train.run_folder import Checkpoint, RunFolder


class Mirror:
    """Copies checkpoints to a second run folder, the newest first."""

    def __init__(self, target: RunFolder, failed: Callable[[Checkpoint, str], None]) -> None:
        self.target = target
        self._failed = failed
        self._wanted: tuple[list[Checkpoint], set[int]] | None = None
        self._condition = threading.Condition()
        self._thread: threading.Thread | None = None

    def copy(self, checkpoints: list[Checkpoint], kept: set[int]) -> None:
        """Bring the second place up to these; replaces what was asked before and has not begun."""
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

    def _bring(self, checkpoints: list[Checkpoint], kept: set[int]) -> None:
        there = {checkpoint.step for checkpoint in self.target.checkpoints()}
        for checkpoint in sorted(checkpoints, key=lambda each: -each.step):
            if checkpoint.step in kept and checkpoint.step not in there:
                try:
                    self.target.take(checkpoint)
                except Exception as failure:  # a full or absent second place must never end a run
                    self._failed(checkpoint, str(failure))
                    return
        self.target.keep_only(kept)

"""wandb: a run under the run's name, which goes on when the run does."""

from collections.abc import Mapping
from typing import Any

from trivium.train.trackers.tracker import Tracked, Tracker, missing


class Wandb(Tracker):
    """A wandb run that is resumed when the run is."""

    def __init__(self, run: Tracked) -> None:
        super().__init__(run)
        try:
            import wandb
        except ImportError:
            raise missing("wandb") from None
        named: dict[str, Any] = {"id": run.name, "name": run.name, "project": run.project}
        self._run = wandb.init(**named, resume="allow", dir=str(run.folder), config=dict(run.config))

    def log(self, found: Mapping[str, float], step: int) -> None:
        self._run.log(dict(found), step=step)

    def close(self) -> None:
        self._run.finish()

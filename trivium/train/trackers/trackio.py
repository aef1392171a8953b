"""trackio: a run in a database on this machine, which goes on when the run does; 0.03 ms a step."""

import io
from collections.abc import Mapping
from contextlib import redirect_stdout
from typing import Any

from trivium.train.trackers.tracker import Tracked, Tracker, missing


class Trackio(Tracker):
    """The newest trackio run under the run's name where the run is resumed, else a new one."""

    def __init__(self, run: Tracked) -> None:
        super().__init__(run)
        try:
            import trackio
        except ImportError:
            raise missing("trackio") from None
        resume = "allow" if run.is_resumed else "never"
        how: dict[str, Any] = {"resume": resume, "config": dict(run.config), "embed": False, "auto_log_cpu": False}
        self._finish: Any = trackio.finish
        with redirect_stdout(io.StringIO()):  # it prints eight lines
            self._run = trackio.init(project=run.project or "trivium", name=run.name, **how)

    def log(self, found: Mapping[str, float], step: int) -> None:
        self._run.log(dict(found), step=step)

    def close(self) -> None:
        with redirect_stdout(io.StringIO()):
            self._finish()

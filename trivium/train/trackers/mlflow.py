"""MLflow: a run on the server of MLFLOW_TRACKING_URI, or in mlflow.db beside the runs' folders.

A call takes some 20 ms, and more over a network, so that a thread makes them, with all figures that wait in one call.
What waits is bounded: where the server is slower than the run for long, figures are dropped and that is reported once.
"""

import os
import re
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from queue import Empty, Queue
from typing import Any, NamedTuple

from trivium.train.trackers.tracker import Tracked, Tracker, missing

MOST_WAITING = 1000  # steps whose figures wait for the thread
MOST_METRICS = 900  # of one call; MLflow allows 1,000
MOST_PARAMETERS = 100  # of one call
LONGEST_VALUE = 500  # characters of a parameter
CLOSING_SECONDS = 60.0
ID_FILE = "mlflow_run_id"  # in the run's folder: a resume finds the run by it
NOT_IN_NAMES = re.compile(r"[^\w\-./ :]")


class Figures(NamedTuple):
    """What is sent of one step."""

    found: Mapping[str, float]
    step: int
    milliseconds: int


class Mlflow(Tracker):
    """An MLflow run that goes on when the run does."""

    def __init__(self, run: Tracked) -> None:
        super().__init__(run)
        try:
            import mlflow
            from mlflow.tracking import MlflowClient
        except ImportError:
            raise missing("mlflow-skinny", "mlflow") from None
        self._entities = mlflow.entities
        beside = run.folder.resolve().parent / "mlflow.db"
        self._client = MlflowClient(os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{beside}")
        self._id = self._found_run() or self._new_run()
        self._waiting: Queue[Figures | None] = Queue(MOST_WAITING)
        self._thread = threading.Thread(target=self._send_all, name="trivium-mlflow", daemon=True)
        self._thread.start()

    def log(self, found: Mapping[str, float], step: int) -> None:
        self._waiting.put_nowait(Figures(found, step, int(time.time() * 1000)))

    def close(self) -> None:
        """Send what waits, for a minute at the most."""
        self._waiting.put(None)
        self._thread.join(CLOSING_SECONDS)
        with suppress(Exception):  # the server may be gone; the run has ended all the same
            self._client.set_terminated(self._id)

    def _found_run(self) -> str | None:
        """The run of earlier launches, if this server has it."""
        path = self.run.folder / ID_FILE
        if not self.run.is_resumed or not path.is_file():
            return None
        run_id = path.read_text(encoding="utf-8").strip()
        try:
            self._client.update_run(run_id, status="RUNNING")
        except Exception:  # another server, or deleted there
            return None
        return run_id

    def _new_run(self) -> str:
        name = self.run.project or "trivium"
        experiment = self._client.get_experiment_by_name(name)
        number = self._client.create_experiment(name) if experiment is None else experiment.experiment_id
        run_id: str = self._client.create_run(number, run_name=self.run.name).info.run_id
        (self.run.folder / ID_FILE).write_text(run_id, encoding="utf-8")
        given = [self._entities.Param(key, value[:LONGEST_VALUE]) for key, value in flattened(self.run.config)]
        for first in range(0, len(given), MOST_PARAMETERS):
            self._client.log_batch(run_id, params=given[first : first + MOST_PARAMETERS])
        return run_id

    def _send_all(self) -> None:
        """The thread: whatever waits, in calls as large as MLflow allows, until None comes."""
        ended = False
        while not ended:
            steps = [self._waiting.get()]
            with suppress(Empty):
                while True:
                    steps.append(self._waiting.get_nowait())
            ended = None in steps
            metrics = [metric for figures in steps if figures is not None for metric in self._metrics(figures)]
            for first in range(0, len(metrics), MOST_METRICS):
                try:
                    self._client.log_batch(self._id, metrics=metrics[first : first + MOST_METRICS])
                except Exception as failure:  # a network, a full disk: it must not end the thread
                    self.report(failure)

    def _metrics(self, figures: Figures) -> list[Any]:
        return [
            self._entities.Metric(NOT_IN_NAMES.sub("_", name), value, figures.milliseconds, figures.step)
            for name, value in figures.found.items()
        ]


def flattened(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """A config as parameters: `stages.0.seq_len`, `2048`."""
    for key, value in table.items():
        name = f"{prefix}{NOT_IN_NAMES.sub('_', str(key))}"
        if isinstance(value, list) and value and all(isinstance(each, dict) for each in value):
            value = {str(index): each for index, each in enumerate(value)}
        if isinstance(value, dict):
            yield from flattened(value, f"{name}.")
        else:
            yield name, str(value)

"""TensorBoard: an event file in the run's folder."""

import time
from collections.abc import Mapping

from trivium.train.trackers.tracker import Tracked, Tracker, missing


class TensorBoard(Tracker):
    """A tensorboard event file in the run's folder."""

    def __init__(self, run: Tracked) -> None:
        super().__init__(run)
        try:
            from tensorboard.compat.proto import event_pb2, summary_pb2
            from tensorboard.summary.writer.event_file_writer import EventFileWriter
        except ImportError:
            raise missing("tensorboard") from None
        self._protos = event_pb2, summary_pb2
        self._writer = EventFileWriter(str(run.folder / "tensorboard"))

    def log(self, found: Mapping[str, float], step: int) -> None:
        events, summaries = self._protos
        values = [summaries.Summary.Value(tag=name, simple_value=value) for name, value in found.items()]
        self._writer.add_event(events.Event(wall_time=time.time(), step=step, summary=summaries.Summary(value=values)))

    def close(self) -> None:
        self._writer.close()

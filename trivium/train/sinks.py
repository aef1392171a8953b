"""Where the events of a launch go: the file, the terminal (`screens/`), TensorBoard, wandb.

Trackers get figures by name, every `track.every` steps; one that fails is reported once and never ends a run.
"""

import time
from abc import abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from trivium.config.schema import Track
from trivium.errors import ConfigError, Problem
from trivium.run.events import Evaluated, Event, Scored, Sink, StepTaken

COST_FIGURES = (
    "tokens_per_second",
    "flops_per_second",
    "mfu",
    "seconds",
    "waited",
    "memory",
    "flops",
    "training_seconds",
)
STEP_FIGURES = ("loss", "mean_loss", "lr_multiplier", "grad_norm", *COST_FIGURES)


def figures(event: Event) -> dict[str, float]:
    """An event's numbers by name: `train/loss`, `train/loss/web`, `validation/bits_per_byte/web`."""
    found: dict[str, Any] = {}
    if isinstance(event, StepTaken):
        found = {f"train/{name}": getattr(event, name) for name in STEP_FIGURES}
        found |= _under("train/loss", event.loss_by_source) | _under("train/epochs", event.epochs)
        found |= _under("train/device_memory", event.device_memory or {})
        found |= _under("train/lr", event.lr) | _under("train", event.extra) | _under("own", event.figures)
    elif isinstance(event, Evaluated):
        found = {"validation/loss": event.loss, "validation/bits_per_byte": event.bits_per_byte}
        found["validation/weighted_loss"] = event.weighted_loss
        found |= _under("validation/loss", event.loss_by_source)
        found |= _under("validation/bits_per_byte", event.bits_per_byte_by_source)
        found |= _under("scores", event.scores)
        found = _under("average", found) if event.averaged else found
    elif isinstance(event, Scored):
        found = _under("scores", {name: score["score"] for name, score in event.scores.items()})
        found["scores/centred"] = event.overall
        found = _under("average", found) if event.averaged else found
    return {name: float(value) for name, value in found.items() if value is not None}


def _under(prefix: str, values: Mapping[str, float | None]) -> dict[str, float | None]:
    return {f"{prefix}/{name}": value for name, value in values.items()}


class Sinks:
    """All sinks of a launch; none on ranks other than the first. Whatever is written is progress."""

    def __init__(self, beat: Callable[[], None]) -> None:
        self._beat = beat
        self._sinks: list[Sink] = []

    def add(self, *sinks: Sink) -> None:
        self._sinks += sinks

    def write(self, event: Event) -> None:
        self._beat()
        for sink in self._sinks:
            sink.write(event)

    def close(self) -> None:
        for sink in self._sinks:
            sink.close()
        self._sinks = []


class Tracker:
    """A tracker of experiments: figures of every `every`th step, and of all evaluations and scores."""

    def __init__(self, every: int, say: Callable[[str], None]) -> None:
        self._every = every
        self._say = say
        self._failed = False

    def write(self, event: Event) -> None:
        found = figures(event)
        if not found or (isinstance(event, StepTaken) and event.step % self._every):
            return
        try:
            self.log(found, event.step)
        except Exception as failure:  # a network, a full disk: whatever a tracker raises must not end a run
            if not self._failed:
                self._failed = True
                self._say(f"{type(self).__name__} failed, and may lack figures from here on: {failure}")

    @abstractmethod
    def log(self, found: Mapping[str, float], step: int) -> None:
        """Hand figures over."""

    @abstractmethod
    def close(self) -> None:
        """Finish."""


class TensorBoard(Tracker):
    """A tensorboard event file in the run's folder."""

    def __init__(self, folder: Path, every: int, say: Callable[[str], None]) -> None:
        super().__init__(every, say)
        try:
            from tensorboard.compat.proto import event_pb2, summary_pb2
            from tensorboard.summary.writer.event_file_writer import EventFileWriter
        except ImportError:
            raise _missing("tensorboard") from None
        self._protos = event_pb2, summary_pb2
        self._writer = EventFileWriter(str(folder / "tensorboard"))

    def log(self, found: Mapping[str, float], step: int) -> None:
        events, summaries = self._protos
        values = [summaries.Summary.Value(tag=name, simple_value=value) for name, value in found.items()]
        self._writer.add_event(events.Event(wall_time=time.time(), step=step, summary=summaries.Summary(value=values)))

    def close(self) -> None:
        self._writer.close()


class Wandb(Tracker):
    """A wandb run that is resumed when the run is."""

    def __init__(
        self, folder: Path, name: str, config: Mapping[str, Any], every: int, say: Callable[[str], None]
    ) -> None:
        super().__init__(every, say)
        try:
            import wandb
        except ImportError:
            raise _missing("wandb") from None
        self._run = wandb.init(id=name, name=name, resume="allow", dir=str(folder), config=dict(config))

    def log(self, found: Mapping[str, float], step: int) -> None:
        self._run.log(dict(found), step=step)

    def close(self) -> None:
        self._run.finish()


def trackers(track: Track, folder: Path, run: str, config: Mapping[str, Any], say: Callable[[str], None]) -> list[Sink]:
    return [
        TensorBoard(folder, track.every, say) if name == "tensorboard" else Wandb(folder, run, config, track.every, say)
        for name in track.trackers
    ]


def _missing(package: str) -> ConfigError:
    what = f"{package} is not installed: pip install 'trivium[track]', or take it out."
    return ConfigError([Problem("track.trackers", what)])

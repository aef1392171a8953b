"""TensorBoard and wandb as sinks: the figures of steps and evaluations, by name."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trivium.errors import ConfigError, Problem
from trivium.run.events import Evaluated, Event, Scored, Sink, StepTaken

STEP_FIGURES = (
    "loss",
    "mean_loss",
    "lr_multiplier",
    "grad_norm",
    "tokens_per_second",
    "flops_per_second",
    "mfu",
    "seconds",
    "waited",
    "memory",
)


def figures(event: Event) -> dict[str, float]:
    """An event's numbers by name: `train/loss`, `train/loss/web`, `validation/bits_per_byte/web`."""
    found: dict[str, Any] = {}
    if isinstance(event, StepTaken):
        found = {f"train/{name}": getattr(event, name) for name in STEP_FIGURES}
        found |= _under("train/loss", event.loss_by_source) | _under("train/epochs", event.epochs)
        found |= _under("train/lr", event.lr) | _under("train", event.extra)
    elif isinstance(event, Evaluated):
        found = {"validation/loss": event.loss, "validation/bits_per_byte": event.bits_per_byte}
        found |= _under("validation/loss", event.loss_by_source)
        found |= _under("validation/bits_per_byte", event.bits_per_byte_by_source)
        found |= _under("scores", event.scores)
    elif isinstance(event, Scored):
        found = _under("scores", {name: score["score"] for name, score in event.scores.items()})
        found["scores/centred"] = event.overall
    return {name: float(value) for name, value in found.items() if value is not None}


def _under(prefix: str, values: Mapping[str, float | None]) -> dict[str, float | None]:
    return {f"{prefix}/{name}": value for name, value in values.items()}


class TensorBoard:
    """A tensorboard event file in the run's folder."""

    def __init__(self, folder: Path) -> None:
        try:
            from tensorboard.compat.proto import event_pb2, summary_pb2
            from tensorboard.summary.writer.event_file_writer import EventFileWriter
        except ImportError:
            raise _missing("tensorboard") from None
        self._protos = event_pb2, summary_pb2
        self._writer = EventFileWriter(str(folder / "tensorboard"))

    def write(self, event: Event) -> None:
        """Add the event's figures."""
        found = figures(event)
        if found:
            events, summaries = self._protos
            values = [summaries.Summary.Value(tag=name, simple_value=value) for name, value in found.items()]
            summary = summaries.Summary(value=values)
            self._writer.add_event(events.Event(wall_time=time.time(), step=event.step, summary=summary))

    def close(self) -> None:
        """Flush."""
        self._writer.close()


class Wandb:
    """A wandb run that goes on where the run goes on."""

    def __init__(self, folder: Path, name: str, config: Mapping[str, Any]) -> None:
        try:
            import wandb
        except ImportError:
            raise _missing("wandb") from None
        self._run = wandb.init(id=name, name=name, resume="allow", dir=str(folder), config=dict(config))

    def write(self, event: Event) -> None:
        """Log the event's figures."""
        found = figures(event)
        if found:
            self._run.log(found, step=event.step)

    def close(self) -> None:
        """Finish the wandb run."""
        self._run.finish()


def tracker_sinks(names: tuple[str, ...], folder: Path, run: str, config: Mapping[str, Any]) -> list[Sink]:
    """The trackers that the config names."""
    return [TensorBoard(folder) if name == "tensorboard" else Wandb(folder, run, config) for name in names]


def _missing(package: str) -> ConfigError:
    what = f"{package} is not installed: pip install 'trivium[track]', or take it out."
    return ConfigError([Problem("track.trackers", what)])

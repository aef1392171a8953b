"""Events -> figures by name, and what every tracker of experiments does with them.

A tracker gets the figures of every `track.every` steps; one that fails is reported once and never ends a run. Steps
that a resume takes again are not sent again: the tracker has their figures.
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trivium.errors import ConfigError, Problem
from trivium.run.events import Evaluated, Event, Scored, StepTaken

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


@dataclass(frozen=True, slots=True)
class Tracked:
    """The run that is tracked, and how."""

    folder: Path
    name: str
    config: Mapping[str, Any]
    every: int  # steps between those that are sent
    sent: Mapping[str, int]  # by kind of event, the last step of earlier launches
    say: Callable[[str], None]
    project: str | None = None

    @property
    def is_resumed(self) -> bool:
        """Whether earlier launches have taken steps."""
        return bool(self.sent)


class Tracker:
    """A tracker of experiments: figures of every `every`th step, and of all evaluations and scores."""

    def __init__(self, run: Tracked) -> None:
        self.run = run
        self._failed = False

    def write(self, event: Event) -> None:
        found = {} if event.step <= self.run.sent.get(event.kind, -1) else figures(event)
        if not found or (isinstance(event, StepTaken) and event.step % self.run.every):
            return
        try:
            self.log(found, event.step)
        except Exception as failure:  # a network, a full disk: whatever a tracker raises must not end a run
            self.report(failure)

    def report(self, failure: Exception) -> None:
        """Say once that something did not arrive."""
        if not self._failed:
            self._failed = True
            self.run.say(f"{type(self).__name__} failed, and may lack figures from here on: {failure}")

    @abstractmethod
    def log(self, found: Mapping[str, float], step: int) -> None:
        """Hand figures over."""

    @abstractmethod
    def close(self) -> None:
        """Finish."""


def missing(package: str, extra: str = "track") -> ConfigError:
    """The error for a tracker whose package is not there."""
    what = f"{package} is not installed: pip install 'trivium[{extra}]', or take it out."
    return ConfigError([Problem("track.trackers", what)])

"""`[track]` -> the trackers of a launch."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from trivium.config.schema import Track
from trivium.run.events import Evaluated, Scored, Sink, StepTaken, read_events
from trivium.train.trackers.mlflow import Mlflow
from trivium.train.trackers.tensorboard import TensorBoard
from trivium.train.trackers.tracker import Tracked, Tracker
from trivium.train.trackers.trackio import Trackio
from trivium.train.trackers.wandb import Wandb

TRACKED_KINDS = (StepTaken.kind, Evaluated.kind, Scored.kind)
KINDS: dict[str, type[Tracker]] = {
    "tensorboard": TensorBoard,
    "wandb": Wandb,
    "trackio": Trackio,
    "mlflow": Mlflow,
}


def trackers(
    track: Track, folder: Path, events: Path, run: str, config: Mapping[str, Any], say: Callable[[str], None]
) -> list[Sink]:
    """The trackers that a config names, for a run that begins or goes on."""
    if not track.trackers:
        return []
    tracked = Tracked(folder, run, config, track.every, _sent(events), say, track.project)
    return [KINDS[name](tracked) for name in track.trackers]


def _sent(events: Path) -> dict[str, int]:
    """By kind of event, the last step that earlier launches wrote."""
    sent: dict[str, int] = {}
    for event in read_events(events) if events.exists() else ():
        sent[event["event"]] = max(event["step"], sent.get(event["event"], 0))
    return {kind: sent[kind] for kind in TRACKED_KINDS if kind in sent}

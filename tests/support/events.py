"""Events of a run, as tests look at them."""

from pathlib import Path
from typing import Any

from trivium.run.events import read_events


def steps_taken(path: Path) -> dict[int, dict[str, Any]]:
    """A run's steps by number; of a step that was taken again after a resume, the last event."""
    steps: dict[int, dict[str, Any]] = {}
    for event in read_events(path):
        if event["event"] == "started":
            steps = {step: record for step, record in steps.items() if step <= event["step"]}
        elif event["event"] == "step":
            steps[event["step"]] = event
    return steps

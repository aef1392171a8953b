"""Events of a run, as tests look at them."""

from pathlib import Path
from typing import Any

from trivium.run.events import StepTaken, read_events


def steps_taken(path: Path) -> dict[int, dict[str, Any]]:
    """A run's steps by number; of a step that was taken again after a resume, the last event."""
    steps: dict[int, dict[str, Any]] = {}
    for event in read_events(path):
        if event["event"] == "started":
            steps = {step: record for step, record in steps.items() if step <= event["step"]}
        elif event["event"] == "step":
            steps[event["step"]] = event
    return steps


def step(number: int, loss: float = 1.0) -> StepTaken:
    return StepTaken(
        step=number,
        stage="general",
        loss=loss,
        mean_loss=loss,
        lr={"matrix": 0.02, "rest": 3e-4},
        lr_multiplier=1.0,
        grad_norm=0.5,
        tokens=2048,
        loss_tokens=2000,
        loss_by_source={"web": loss},
        loss_tokens_by_source={"web": 2000},
        epochs={"web": 0.25},
        seconds=0.5,
        waited=0.001,
        tokens_per_second=4096.0,
        flops_per_second=1e9,
        mfu=None,
        flops=1e10,
        training_seconds=3.0,
        percent=10.0,
        memory=1000,
    )

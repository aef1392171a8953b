"""A run's events -> what was recorded of each step: loss, gradient norm, and whether it spiked or was skipped.

Steps are counted as everywhere on the command line: step 40 is the batch that `trivium inspect --step 40` shows, and
the event of its update says 41. A step that a resume took again counts as it was taken last.
"""

from dataclasses import dataclass
from pathlib import Path

from trivium.errors import UsageError
from trivium.run.events import Skipped, Spiked, Started, StepTaken, as_event, read_events


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """What a run's events have of one step; a skipped one has no figures."""

    step: int
    stage: str
    loss: float | None = None
    grad_norm: float | None = None
    limit: float | None = None  # that its loss was over, of a spike
    skipped: str | None = None  # why no update was made
    rows: str | None = None  # the file that keeps its rows, of a step that went wrong

    @property
    def is_trouble(self) -> bool:
        """Whether it spiked or was skipped for what it did."""
        return self.limit is not None or (self.skipped is not None and self.rows is not None)

    @property
    def mark(self) -> str:
        """`spike, over 3.2100`, `skipped`, or nothing."""
        if self.skipped is not None:
            return "skipped"
        return "" if self.limit is None else f"spike, over {self.limit:.4f}"


def recorded_steps(run: Path) -> dict[int, RecordedStep]:
    """Every step of a run that its events have."""
    path = run / "events.jsonl"
    if not path.is_file():
        raise UsageError(f"{run}: has no events.jsonl. Give the folder of a run that has begun, such as runs/base.")
    steps: dict[int, RecordedStep] = {}
    kinds = {kind.kind for kind in (Started, StepTaken, Skipped, Spiked)}
    for record in read_events(path):
        event = as_event(record) if record["event"] in kinds else None
        match event:
            case Started():
                steps = {step: each for step, each in steps.items() if step < event.step}
            case StepTaken():
                steps[event.step - 1] = RecordedStep(event.step - 1, event.stage, event.loss, event.grad_norm)
            case Skipped():
                at = event.step - 1
                steps[at] = RecordedStep(at, event.stage, skipped=event.why, rows=event.rows)
            case Spiked():
                before = steps.get(event.step - 1)
                norm = None if before is None else before.grad_norm
                at = event.step - 1
                steps[at] = RecordedStep(at, event.stage, event.loss, norm, event.limit, rows=event.rows)
    if not steps:
        raise UsageError(f"{run}: no step has been taken yet.")
    return steps


def last_trouble(steps: dict[int, RecordedStep], run: Path) -> int:
    """The last step that spiked or was skipped."""
    found = [step for step, each in steps.items() if each.is_trouble]
    if not found:
        raise UsageError(f"{run}: no step has spiked. Give the step to look at: --step {max(steps)}.")
    return max(found)

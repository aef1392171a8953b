"""The events of a launch -> where it stands: time so far and time left, validation now and before, in words.

Time left is counted by FLOPs, so that a stage of longer rows counts for what it takes; it includes evaluations and
saves as they came so far, but not the first step, which may compile.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from trivium.config.load import Loaded
from trivium.plan.plan import CompletePlan
from trivium.run.events import Evaluated, Event, Started, StepTaken


@dataclass(frozen=True, slots=True)
class Launch:
    """What views know of a launch beside its events."""

    plan: Callable[[], CompletePlan]  # it may change, where a stage ends on a figure
    end: Callable[[], int]  # the step before which this launch ends
    validation: Callable[[], Evaluated | None]  # the last evaluation that a checkpoint has kept
    folder: Path
    keeps: bool = True  # whether checkpoints are written: a dry run writes none
    loaded: Loaded | None = None  # where the config came from a file


class Standing:
    """Where a launch stands, by its events."""

    def __init__(self, launch: Launch, now: Callable[[], float] = time.monotonic) -> None:
        self.launch = launch
        self._now = now
        self._began = now()
        self._first: tuple[int, float] | None = None  # the first step that was taken, and when it was over
        self._step = 0
        self._stepped = self._began  # when the last step was over
        self.validation: Evaluated | None = None
        self.before: Evaluated | None = None  # the evaluation before that, on the same rows

    def write(self, event: Event) -> None:
        """Take an event into account."""
        match event:
            case Started():
                self._step = event.step
                self.validation = self.launch.validation()
            case StepTaken():
                self._step, self._stepped = event.step, self._now()
                self._first = self._first or (event.step, self._stepped)
            case Evaluated() if event.loss is not None:
                last = self.validation
                is_same = last is not None and _basis(last) == _basis(event) and last.step < event.step
                self.before = last if is_same else None
                self.validation = event
            case _:
                pass

    @property
    def elapsed(self) -> float:
        """Seconds of this launch."""
        return self._now() - self._began

    @property
    def left(self) -> float | None:
        """Seconds to the launch's end, at the pace so far; None before there is one."""
        plan = self.launch.plan()
        if self._first is None or self._step <= self._first[0]:
            return None
        first, began = self._first
        pace = (self._stepped - began) / work_between(plan, first, self._step)
        seconds = pace * work_between(plan, self._step, self.launch.end())
        return max(0.0, seconds - (self._now() - self._stepped)) if seconds else 0.0

    @property
    def times(self) -> str:
        """`0:42, 12:03 left`."""
        left = self.left
        return clock(self.elapsed) + ("" if left is None else f", {clock(left)} left")

    @property
    def change(self) -> str:
        """`was 3.5120 at step 1,000 (-0.1110)`: how validation stood before; empty where nothing can be compared."""
        before, now = self.before, self.validation
        if before is None or now is None or before.loss is None or now.loss is None:
            return ""
        return f"was {before.loss:.4f} at step {before.step:,} ({now.loss - before.loss:+.4f})"


def _basis(event: Evaluated) -> tuple[str, bool]:
    """Figures with the same one can be compared."""
    return event.fingerprint, event.averaged


def work_between(plan: CompletePlan, first: int, end: int) -> float:
    """FLOPs of the steps from one to another; tokens where nobody has counted the model's FLOPs."""
    work = 0.0
    for stage, flops in zip(plan.stages, _flops_by_stage(plan), strict=True):
        start, stop = max(first, stage.start), min(end, stage.end)
        if start < stop:
            work += flops * (plan.tokens_before(stop) - plan.tokens_before(start))
    return max(work, 1e-9)


def _flops_by_stage(plan: CompletePlan) -> tuple[float, ...]:
    known = tuple(plan.flops_per_token(stage) for stage in plan.stages)
    return tuple(1.0 if None in known or not each else each for each in known)


def clock(seconds: float) -> str:
    """`0:42`, `1:02:03`, `2 d 03:04:05`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours:02}:{minutes:02}:{rest:02}"
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def device_words(memory: Mapping[str, int]) -> tuple[str, ...]:
    """`GPU 61.2 of 84.8 GB`, `reserved 64.0 GB`, `predicted 60.5 GB (-1.1%)`, `2 allocator retries`."""
    gigabytes = {name: f"{size / 1e9:.1f}" for name, size in memory.items()}
    words = [f"GPU {gigabytes['active']} of {gigabytes['total']} GB", f"reserved {gigabytes['reserved']} GB"]
    if "predicted" in memory:
        error = memory["predicted"] / max(1, memory["active"]) - 1
        words.append(f"predicted {gigabytes['predicted']} GB ({error:+.1%})")
    return (*words, f"{memory['retries']:,} allocator retries") if memory["retries"] else tuple(words)

"""What a step cost, and which rank is slow: times, speeds, running mean, epochs."""

import resource
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trivium.engine.base import Engine, StepSettings, StepStats
from trivium.engine.memory import device_memory
from trivium.engine.ranks import Ranks
from trivium.forecast.predicted import PredictedPeaks
from trivium.plan.plan import CompletePlan
from trivium.run.events import StepTaken

MEAN_DECAY = 0.9
WARM_STEPS = 10  # of each launch: compiling and warming up is not training time
COMPARED_STEPS = 10  # between two comparisons of all ranks
LAG = 1.2  # of the median
LAG_REPORTS = 3  # comparisons in which the same rank lags before it is reported


@dataclass(slots=True)
class Meter:
    """Measures a run's steps; what is in `state` survives a resume."""

    plan: CompletePlan
    peak_flops: float | None
    weighted_loss: float = 0.0
    weight: float = 0.0
    flops: float = 0.0
    training_seconds: float = 0.0
    steps_here: int = 0
    _mark: float = field(default_factory=time.perf_counter)
    _waited: float = 0.0

    def state(self) -> dict[str, float]:
        return {key: getattr(self, key) for key in ("weighted_loss", "weight", "flops", "training_seconds")}

    def load_state(self, state: Mapping[str, float]) -> None:
        for key, value in state.items():
            setattr(self, key, value)

    @property
    def makes_own_model(self) -> bool:
        """Whether a function of the user's own makes the model: nobody has counted its FLOPs."""
        return self.plan.makes_model is not None

    def start(self) -> None:
        """The clock of the next step starts here, so that an evaluation or a save counts for none."""
        self._mark = time.perf_counter()

    def got_batch(self) -> None:
        """The time since `start` was spent waiting for data."""
        self._waited = time.perf_counter() - self._mark

    def took(self, step: int, now: StepSettings, stats: StepStats) -> StepTaken:
        """Count a step; returns its event."""
        seconds = time.perf_counter() - self._mark
        stage = self.plan.stage_at(step)
        tokens = now.batch_size * now.seq_len
        work = (self.plan.flops_per_token(stage) or 0.0) * tokens
        if self.makes_own_model:
            work = 0.0
        self.flops += work
        self.steps_here += 1
        if self.steps_here > WARM_STEPS and not stats.compilations:
            self.training_seconds += seconds
        self.weighted_loss = MEAN_DECAY * self.weighted_loss + (1 - MEAN_DECAY) * stats.loss
        self.weight = MEAN_DECAY * self.weight + (1 - MEAN_DECAY)
        nats, by_source = stats.nats_by_source, dict(stats.loss_tokens_by_source)
        return StepTaken(
            step=step + 1,
            stage=stage.name,
            loss=stats.loss,
            mean_loss=self.weighted_loss / self.weight,
            lr=dict(now.lr),
            lr_multiplier=now.lr_multiplier,
            grad_norm=stats.grad_norm,
            tokens=tokens,
            loss_tokens=stats.loss_tokens,
            loss_by_source={name: nats[name] / count for name, count in by_source.items() if count},
            loss_tokens_by_source=by_source,
            epochs=self.plan.epochs_before(step + 1),
            seconds=seconds,
            waited=self._waited,
            tokens_per_second=tokens / seconds,
            flops_per_second=work / seconds,
            mfu=self._mfu(work / seconds),
            flops=self.flops,
            training_seconds=self.training_seconds,
            percent=100 * (step + 1) / self.plan.total_steps,
            memory=memory_in_use(),
            extra=dict(stats.extra),
            compilations=stats.compilations,
        )

    def _mfu(self, flops_per_second: float) -> float | None:
        """The part of the peak that is used; None where either is not known, or the peak cannot be this device's.

        Work counts every query against every key, also those that masks skip: with long rows it may exceed the peak.
        """
        if self.peak_flops is None or self.makes_own_model or flops_per_second > self.peak_flops:
            return None
        return flops_per_second / self.peak_flops


@dataclass(slots=True)
class Compared:
    """What all ranks compare every few steps, in one call: their devices' memory, and who the others wait for.

    Ranks that share a model pass through it together: the time of a step is the same for all of them. What differs is
    how long each takes before that by itself: its batch, its update, its disk, its machine. Whoever comes last finds
    the others waiting: the shortest passes of any rank are those without a wait, and count for all of them.
    """

    ranks: Ranks
    say: Callable[[str], None]
    predicted: PredictedPeaks | None = None
    _stage: int = 0
    _retried: bool = False  # whether the user knows that the allocator did, in this stage
    _alone: list[float] = field(default_factory=list)  # seconds of each step, outside the passes
    _together: list[float] = field(default_factory=list)  # and in them
    _looks: int = 0
    _last: int | None = None

    def enter(self, stage: int) -> None:
        """Peaks of memory are counted from here on."""
        self._stage, self._retried = stage, False
        device_memory(reset=True)

    def took(self, seconds: float, together: float, *, ends_stage: bool = False) -> dict[str, Any]:
        """Count a step; returns what its event reports of the slowest rank and of devices' memory.

        `together` are those of its seconds in which ranks wait for each other. Where there are devices, they compare
        also when a stage ends: it may have fewer steps than lie between two comparisons.
        """
        self._alone.append(seconds - together)
        self._together.append(together)
        device, is_due = device_memory(), len(self._alone) >= COMPARED_STEPS
        if not is_due and not (ends_stage and device is not None):
            return {}
        own = [] if device is None else [device.active, device.reserved, device.retries]
        rows = self.ranks.gather([statistics.fmean(self._alone), statistics.fmean(self._together), *own])
        found = {} if device is None else self._memory(device.total, [row[2:] for row in rows])
        if is_due:
            self._alone.clear()
            self._together.clear()
            shortest = min(row[1] for row in rows)
            found |= self._slowest([row[0] + shortest for row in rows])
        return found

    def _memory(self, total: int, rows: list[list[float]]) -> dict[str, Any]:
        """The most of any rank."""
        active, reserved, retries = (int(max(column)) for column in zip(*rows, strict=True))
        if retries and not self._retried:
            self._retried = True
            full = f"{reserved / 1e9:.1f} of {total / 1e9:.1f} GB are reserved"
            self.say(
                f"the GPU's memory is nearly full, and steps are slower: {full}, {retries} retries of the allocator"
            )
        figures = {"active": active, "reserved": reserved, "retries": retries, "total": total}
        predicted = None if self.predicted is None else self.predicted.of(self._stage)
        return {"device_memory": figures if predicted is None else {**figures, "predicted": predicted}}

    def _slowest(self, means: list[float]) -> dict[str, Any]:
        slowest = max(range(len(means)), key=means.__getitem__)
        median = statistics.median_low(means)
        if means[slowest] < LAG * median:
            self._looks, self._last = 0, None
            return {}
        self._looks = self._looks + 1 if slowest == self._last else 1
        self._last = slowest
        if self._looks == LAG_REPORTS:
            times = f"{means[slowest]:.3f} s where half of them take {median:.3f} s or less"
            self.say(f"rank {slowest} is slow: the others wait for it, {times}")
        return {"slowest_rank": slowest, "slowest_seconds": means[slowest], "median_seconds": median}


@dataclass(slots=True)
class Profiler:
    """Traces the steps of a span into a folder; a launch that resumes inside it traces the rest."""

    steps: range
    folder: Path
    engine: Engine
    say: Callable[[str], None]
    _traced: ExitStack | None = None
    _first: int = 0

    def before(self, step: int) -> None:
        """Begin with the span's first step of this launch."""
        if step in self.steps and self._traced is None:
            self._traced, self._first = ExitStack(), step
            self._traced.enter_context(self.engine.profiled(self._path))

    def after(self, step: int) -> None:
        """Write the trace after the span's last step."""
        if step + 1 not in self.steps:
            self.finish(step)

    def finish(self, last: int) -> None:
        """Write what was traced up to this step, if anything; a trace that cannot be written ends no run."""
        if self._traced is None:
            return
        traced, self._traced = self._traced, None
        try:
            traced.close()
        except Exception as failure:  # a full disk, the profiler itself
            self.say(f"steps {self._first:,} to {last:,} are not traced: {failure}")
        else:
            self.say(f"steps {self._first:,} to {last:,} are traced: {self._path}")

    @property
    def _path(self) -> Path:
        return self.folder / f"step-{self._first:08}"


def memory_in_use() -> int:
    """The bytes of this process in memory now."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except OSError:
        return peak_memory()


def peak_memory() -> int:
    """The most bytes that this process has had in memory."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024

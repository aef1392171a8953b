"""What a step cost, and which rank is slow: times, speeds, running mean, epochs."""

import resource
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from trivium.engine.base import StepSettings, StepStats
from trivium.engine.ranks import Ranks
from trivium.plan.plan import CompletePlan
from trivium.run.events import StepTaken

MEAN_DECAY = 0.9
WARM_STEPS = 10  # of each launch: compiling and warming up is not training time
LAG_STEPS = 10  # between two comparisons of all ranks
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
        """Whether a Trainer's own function makes the model: nobody has counted its FLOPs."""
        return "Trainer.model" in self.plan.own

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
        of_reference = 0.0 if stage.config.kl is None else self.plan.model.forward_flops(stage.seq_len)
        work = (self.plan.model.flops(stage.seq_len) + of_reference) * stage.step_tokens
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
            tokens=stage.step_tokens,
            loss_tokens=stats.loss_tokens,
            loss_by_source={name: nats[name] / tokens for name, tokens in by_source.items() if tokens},
            loss_tokens_by_source=by_source,
            epochs=self.plan.epochs_before(step + 1),
            seconds=seconds,
            waited=self._waited,
            tokens_per_second=stage.step_tokens / seconds,
            flops_per_second=work / seconds,
            mfu=None if self.peak_flops is None or self.makes_own_model else work / seconds / self.peak_flops,
            flops=self.flops,
            training_seconds=self.training_seconds,
            percent=100 * (step + 1) / self.plan.total_steps,
            memory=memory_in_use(),
            extra=dict(stats.extra),
            compilations=stats.compilations,
        )


@dataclass(slots=True)
class Lag:
    """Finds the rank that the others wait for.

    Ranks that share a model pass through it together: the time of a step is the same for all of them. What differs is
    how long each takes from one exchange to the next by itself: its batch, its update, its disk, its machine.
    """

    ranks: Ranks
    say: Callable[[str], None]
    _seconds: list[float] = field(default_factory=list)
    _looks: int = 0
    _last: int | None = None

    def took(self, seconds: float) -> dict[str, Any]:
        """Count a step's own seconds; returns what its event reports of the slowest rank, where one lags."""
        self._seconds.append(seconds)
        if self.ranks.size == 1 or len(self._seconds) < LAG_STEPS:
            return {}
        means = self.ranks.gather(statistics.fmean(self._seconds))
        self._seconds.clear()
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


def memory_in_use() -> int:
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except OSError:
        return peak_memory()


def peak_memory() -> int:
    """The most bytes that this process has had in memory."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024

"""Which steps go wrong, and what is done about it.

A step whose loss or gradient is not finite is skipped: no weight moves, and the step counts, so that schedules and data
stay aligned. `max_consecutive_skips` of them in a row end the run. A spike is a loss far above the stage's recent ones:
more than `spike_deviations` robust deviations (1.4826 x the median distance from the median) above their median. Losses
of another stage say nothing, so that each stage starts afresh and is judged once it has `GRACE_STEPS` of its own.

With `optimizer.skip` a step is skipped too whose loss or gradient norm is `deviations` standard deviations above the
mean of the stage's last `steps`, once there are half of them: OLMo's rule, which counts the steps that it skips too.

What the guard knows is in each checkpoint: a resume judges as the run would have. The steps that it skipped are
there too: whether it or `skip_steps` skips a step makes no difference to any bit, so that these may be written
into the config of a run that has passed them.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf, isfinite
from statistics import fmean, median, stdev
from typing import Any

from trivium.config.optimizer import Skip
from trivium.config.schema import Guard as GuardSettings
from trivium.engine.base import StepStats
from trivium.errors import GuardError

RECENT_STEPS = 64
GRACE_STEPS = 16
NORMAL = 1.4826  # the median distance from the median, times this, is a normal distribution's deviation
SMALLEST_RISE = 0.05  # of the median: where losses hardly differ, less than that is not a spike


@dataclass(slots=True)
class Guard:
    """Judges each step by those before it."""

    settings: GuardSettings
    stage: int = -1
    losses: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT_STEPS))
    skip_rule: Skip | None = None  # the stage's `optimizer.skip`
    recent: list[tuple[float, float]] = field(default_factory=list)  # loss and gradient norm of its last steps
    consecutive_skips: int = 0
    skipped: list[tuple[int, int]] = field(default_factory=list)  # spans of steps, each with its first and its end

    def enter(self, stage: int, skip_rule: Skip | None = None) -> None:
        """Begin a stage; a resume in its middle forgets nothing."""
        self.skip_rule = skip_rule
        if stage != self.stage:
            self.stage = stage
            self.losses.clear()
            self.recent.clear()

    def skips(self, step: int) -> bool:
        """Whether the config skips this step."""
        return any(first <= step < end for first, end in self.settings.skip_steps)

    @property
    def spike_limit(self) -> float:
        """The loss above which a step is a spike; infinite while the stage is too young to tell."""
        if len(self.losses) < GRACE_STEPS:
            return inf
        middle = median(self.losses)
        deviation = NORMAL * median(abs(loss - middle) for loss in self.losses)
        return middle + max(self.settings.spike_deviations * deviation, SMALLEST_RISE * abs(middle))

    @property
    def limits(self) -> tuple[float, float]:
        """The loss and the gradient norm above which the engine makes no update."""
        of_spikes = self.spike_limit if self.settings.skip_spikes else inf
        rule = self.skip_rule
        if rule is None or len(self.recent) < max(2, rule.steps // 2):
            return of_spikes, inf
        of_loss, of_norm = (fmean(each) + rule.deviations * stdev(each) for each in zip(*self.recent, strict=True))
        return min(of_spikes, of_loss), of_norm

    def took(self, step: int, stats: StepStats) -> None:
        """Remember a step; GuardError once too many in a row were skipped."""
        if self.skip_rule is not None and isfinite(stats.loss) and isfinite(stats.grad_norm):
            self.recent = [*self.recent, (stats.loss, stats.grad_norm)][-self.skip_rule.steps :]
        if stats.skipped is None:
            self.consecutive_skips = 0
            self.losses.append(stats.loss)
            return
        self.consecutive_skips += 1
        first = step + 1 - self.consecutive_skips
        self.skipped = [span for span in self.skipped if span[0] != first] + [(first, step + 1)]
        if self.consecutive_skips >= self.settings.max_consecutive_skips:
            spans = [list(span) for span in sorted((*self.settings.skip_steps, (first, step + 1)))]
            raise GuardError(
                f"steps {first:,} to {step:,}: {stats.skipped}, {self.consecutive_skips:,} updates skipped in a "
                f"row (guard.max_consecutive_skips). Skip these rows, and start the run again: "
                f"guard.skip_steps = {spans}. Or fork a checkpoint before them, and end the stage there: "
                "one with a lower learning rate may follow."
            )

    def skip(self) -> None:
        """Count a step that the config skips: the user has looked at what went wrong before it."""
        self.consecutive_skips = 0

    def state(self) -> dict[str, Any]:
        return {
            "stage": self.stage,
            "losses": list(self.losses),
            "recent": [list(each) for each in self.recent],
            "consecutive_skips": self.consecutive_skips,
            "skipped": [list(span) for span in self.skipped],
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.stage = int(state["stage"])
        self.losses = deque(map(float, state["losses"]), maxlen=RECENT_STEPS)
        self.recent = [(float(loss), float(norm)) for loss, norm in state.get("recent", ())]
        self.consecutive_skips = int(state["consecutive_skips"])
        self.skipped = [(int(first), int(end)) for first, end in state["skipped"]]

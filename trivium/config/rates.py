"""The learning rate as a config has it: the run's schedule, and what a stage does to it."""

from typing import Annotated, Literal

from pydantic import Field, model_serializer

from trivium.config.fields import Extent, Fraction, NotNegative, Positive, Table, short_form
from trivium.config.numbers import Count, Whole

Shape = Literal["constant", "linear", "cosine", "1-sqrt", "sqrt", "power", "exponential", "wsd", "inverse-sqrt"]
DecayShape = Literal["linear", "cosine", "1-sqrt", "sqrt", "power", "exponential"]
ENDLESS = ("constant", "exponential", "inverse-sqrt")  # shapes that do not end with the run


class LrPoint(Table):
    """A place on the learning rate's curve; two at the same place are a jump."""

    steps: Whole | None = Field(None, examples=[2000])
    """The place in optimizer steps, from the run's start, or from the stage's."""
    tokens: Whole | None = Field(None, examples=["5T"])
    """The place in tokens instead, padding included; rounded up to whole steps."""
    lr: NotNegative | None = Field(None, examples=[0.55])
    """The learning rate there, as a multiple of the peak, or of the stage's start."""
    shape: Literal["linear", "cosine"] = "linear"
    """The form of the curve from the point before to this one."""


Points = Annotated[
    tuple[LrPoint, ...],
    Field(strict=False, examples=[[{"steps": 0, "lr": 1.0}, {"tokens": "5T", "lr": 0.55}]]),
]


class Cycle(Table):
    """A span of steps that repeats: at the peak, then a decay; the next one begins at the peak again."""

    steps: Count | None = Field(None, examples=[20_000])
    """Steps of one cycle, its decay included; the first one has the warm-up too."""
    decay: Count | None = Field(None, examples=[2000])
    """Steps of the decay at its end."""
    warmup: Whole = Field(0, examples=[500])
    """Steps of the rise from `to` at the start of every later cycle; 0: its first step is at the peak."""


class Extend(Table):
    """A schedule that is stretched while the run goes on; the steps up to `at` keep their learning rates."""

    at: Extent | None = Field(None, examples=[{"steps": 597_046}])
    """The step, or the number of tokens, up to which the schedule is as it was."""
    to: Extent | None = Field(None, examples=[{"tokens": "7T"}])
    """The new horizon: the rest of the schedule is stretched so that it ends there."""


class Schedule(Table):
    """The learning rate over the whole run, as a multiplier of optimizer.lr."""

    shape: Shape = "constant"
    """constant, wsd (warm-up, stable, decay), inverse-sqrt, or a fall from the peak to `to`, as of `decay_shape`."""
    warmup: Extent | None = Field(None, examples=[{"steps": 2000}])
    """The length of the rise from zero at the run's start."""
    warmup_from: Fraction | None = Field(None, examples=[0.01])
    """The learning rate of the warm-up's first step, as a fraction of the peak; absent: one step above zero."""
    decay: Extent | None = Field(None, examples=[{"fraction": 0.2}])
    """With wsd: the length of the decay at the horizon's end; absent: a fifth."""
    decay_shape: DecayShape = "linear"
    """With wsd, at fraction p of the decay: 1 - p, (1 + cos(pi p)) / 2, 1 - sqrt(p) (1-sqrt), sqrt(1 - p) (sqrt)."""
    exponent: Positive | None = Field(None, examples=[2.0])
    """With power: (1 - p) ** exponent."""
    half_life: Extent | None = Field(None, examples=[{"steps": 5000}])
    """With exponential: the length over which the learning rate halves, again and again."""
    to: Fraction = Field(0.0, examples=[0.1])
    """The learning rate at the schedule's end, as a fraction of the peak."""
    horizon: Extent | None = Field(None, examples=[{"tokens": "100B"}])
    """The span that the schedule covers; absent: the run's steps."""
    extend: Extend | None = Field(None, examples=[{"at": {"steps": 597_046}, "to": {"tokens": "7T"}}])
    """Stretch the rest of the schedule to a new horizon; the steps up to there do not change."""
    cycle: Cycle | None = Field(None, examples=[{"steps": 20_000, "decay": 2000}])
    """With wsd: decay at the end of every cycle, counted from the run's start, instead of once."""
    points: Points = ()
    """The curve point by point, instead of a shape; after the last one it stays where it is."""


class GroupScale(Table):
    """What learning rates are multiplied by, by group of parameters."""

    matrix: Positive | None = Field(None, examples=[0.5])
    """Matrices of the layers."""
    embedding: Positive | None = Field(None, examples=[0.1])
    """The embedding."""
    unembedding: Positive | None = Field(None, examples=[0.1])
    """The unembedding."""
    rest: Positive = Field(1.0, examples=[0.3])
    """Norms, biases and all other parameters, and every group that is not given."""

    def of(self, group: str) -> float:
        """A group's own factor, or that of the rest."""
        own: float | None = getattr(self, group)
        return self.rest if own is None else own

    @model_serializer
    def as_written(self) -> float | dict[str, float]:
        """As a config has it: one number where all groups have it."""
        given = {key: value for key in type(self).model_fields if (value := getattr(self, key)) is not None}
        return self.rest if given.keys() == {"rest"} else given


class StageLr(Table):
    """What a stage does to the learning rate."""

    scale: Annotated[GroupScale, short_form("rest", Positive | GroupScale)] = Field(
        GroupScale.model_construct(), examples=[0.3]
    )
    """Multiply the run's schedule, or this stage's own curve, by this: one number, or one for each group."""
    start: Literal["here"] | None = Field(None, alias="from")
    """here: the stage's own curve starts where the learning rate of the stage before stands; absent: at the peak."""
    shape: Shape | None = None
    """The stage's own shape, which replaces the run's schedule; absent: the run's schedule."""
    to: Fraction = Field(0.0, examples=[0.1])
    """The learning rate at the stage's end, as a fraction of its start, also with `from`."""
    warmup: Extent | None = Field(None, examples=[{"steps": 2000}])
    """Warm up again from zero at the stage's start."""
    warmup_from: Fraction | None = Field(None, examples=[0.01])
    """The learning rate of the warm-up's first step, as a fraction of its end; absent: one step above zero."""
    decay: Extent | None = Field(None, examples=[{"fraction": 0.2}])
    """With shape = "wsd": the length of the decay at the stage's end."""
    decay_shape: DecayShape = "linear"
    """With shape = "wsd": the form of the decay, as in `[schedule]`."""
    exponent: Positive | None = Field(None, examples=[2.0])
    """With power: (1 - p) ** exponent."""
    half_life: Extent | None = Field(None, examples=[{"steps": 5000}])
    """With exponential: the length over which the learning rate halves, again and again."""
    cycle: Cycle | None = Field(None, examples=[{"steps": 20_000, "decay": 2000}])
    """With shape = "wsd": decay at the end of every cycle, counted from the stage's start, instead of once."""
    points: Points = ()
    """The stage's own curve point by point, instead of a shape; after the last one it stays where it is."""

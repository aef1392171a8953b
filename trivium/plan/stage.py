"""A resolved stage: which steps, what it reads, and how much of each source."""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from trivium.config.stages import Stage
from trivium.model.spec import RopeSpec
from trivium.plan.average import StageAverage
from trivium.rows.figures import Figures
from trivium.rows.mixture import StageMixture
from trivium.rows.reading import Reading, RowSettings


@dataclass(frozen=True, slots=True)
class Segment:
    """A place in a source: a reading, and the position in it."""

    reading: Reading
    start: int


@dataclass(frozen=True, slots=True)
class SourceUse:
    """What a stage takes of one source; only the rows where the source's size is not known."""

    rows: int
    figures: Figures | None = None
    epochs: float | None = None  # read within the stage
    epochs_so_far: float | None = None  # and in the run up to its end
    segment: Segment | None = None  # where the stage starts to read it
    masks_loss: bool = True  # whether the source's loss bytes count in the stage

    @property
    def loss_tokens(self) -> int | None:
        """Tokens that count in the loss; with loss on all, those too that the source's loss bytes mask."""
        if self.figures is None:
            return None
        return self.figures.unmasked if self.masks_loss else self.figures.loss_tokens


@dataclass(frozen=True, slots=True)
class PlannedStage:
    """A span of steps `[start, end)`; None where it depends on a source whose size is not known."""

    index: int
    config: Stage
    seed: int
    start: int | None
    steps: int | None
    mixture: StageMixture | None
    uses: Mapping[str, SourceUse]
    rope: RopeSpec | None = None  # None where the weights that the model starts from are not known
    average: StageAverage | None = None  # of the weights, kept beside them

    @property
    def name(self) -> str:
        assert self.config.name is not None, "a checked stage has a name"
        return self.config.name

    @property
    def end(self) -> int | None:
        """The first step after the stage."""
        return None if self.start is None or self.steps is None else self.start + self.steps

    @property
    def batch_size(self) -> int:
        """Rows in a step, on all ranks."""
        return self.config.rows_of_step

    @property
    def seq_len(self) -> int:
        return self.config.seq_len

    @property
    def row_settings(self) -> RowSettings:
        """What decides how its rows are made."""
        return RowSettings(self.seq_len, self.config.packing, self.seed)

    @property
    def step_tokens(self) -> int:
        """Tokens in a step, padding included."""
        return self.config.tokens_of_step

    @property
    def rows(self) -> int | None:
        """Rows of the whole stage."""
        return None if self.steps is None else self.steps * self.batch_size

    @property
    def tokens(self) -> int | None:
        """Tokens of the whole stage, padding included."""
        return None if self.steps is None else self.steps * self.step_tokens

    @property
    def shares(self) -> Mapping[str, Fraction] | None:
        """The shares of the stage once its fade is over; None where they depend on unknown sizes."""
        if self.mixture is None:
            return None
        new = self.mixture.new
        return dict(zip(new.names, new.shares, strict=True))


@dataclass(frozen=True, slots=True)
class CompleteStage(PlannedStage):
    """A stage whose steps and mixture are known."""

    start: int
    steps: int
    mixture: StageMixture

    @classmethod
    def of(cls, stage: PlannedStage) -> "CompleteStage | None":
        """A stage as this type; None where something of it is not known."""
        if stage.start is None or stage.steps is None or stage.mixture is None:
            return None
        known = stage.start, stage.steps, stage.mixture
        return cls(stage.index, stage.config, stage.seed, *known, stage.uses, stage.rope, stage.average)

    @property
    def end(self) -> int:
        return self.start + self.steps

    @property
    def rows(self) -> int:
        return self.steps * self.batch_size

    @property
    def shares(self) -> Mapping[str, Fraction]:
        """The shares of the stage once its fade is over."""
        return dict(zip(self.mixture.new.names, self.mixture.new.shares, strict=True))

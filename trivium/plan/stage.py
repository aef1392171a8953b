"""A resolved stage: which steps, what it reads, and how much of each source."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from fractions import Fraction

from trivium.config.batches import Batches, BatchPiece
from trivium.config.stages import Stage
from trivium.model.spec import ModelSpec, RopeSpec
from trivium.plan.average import StageAverage
from trivium.rows.figures import Figures
from trivium.rows.goldfish import NONE, Goldfish
from trivium.rows.mixture import StageMixture
from trivium.rows.reading import Reading, RowSettings
from trivium.run.decisions import StageEnded


@dataclass(frozen=True, slots=True)
class Segment:
    """A place in a source: a reading, and the position in it."""

    reading: Reading
    start: int


@dataclass(frozen=True, slots=True)
class SourceUse:
    """What a stage takes of one source; only the rows where the source's size is not known.

    Of a source that is not on disk, epochs are those of its expected tokens, and there are no figures.
    """

    rows: int
    figures: Figures | None = None
    epochs: float | None = None  # read within the stage
    epochs_so_far: float | None = None  # and in the run up to its end
    segment: Segment | None = None  # where the stage starts to read it
    masks_loss: bool = True  # whether the source's loss bytes count in the stage
    dropped: float = 0.0  # the share of its loss tokens that a goldfish mask is expected to drop

    @property
    def loss_tokens(self) -> int | None:
        """Tokens that count in the loss; with loss on all, those too that the source's loss bytes mask.

        With a goldfish mask, which only the tokens themselves decide, as many as are expected.
        """
        if self.figures is None:
            return None
        counted = self.figures.unmasked if self.masks_loss else self.figures.loss_tokens
        return round(counted * (1 - self.dropped))


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
    batches: Batches  # rows of its steps, counted from its first
    rope: RopeSpec | None = None  # None where the weights that the model starts from are not known
    average: StageAverage | None = None  # of the weights, kept beside them
    longest: int | None = None  # its steps, had it not ended on a figure
    ended: StageEnded | None = None  # why it has fewer
    vocab: int | None = None  # tokens that the model knows; None where that is not known
    freeze: tuple[str, ...] = ()  # parts of the model that no update changes, by the fewest names
    teacher: ModelSpec | None = None  # the shape of what it is distilled from, where that is known

    @property
    def may_end_early(self) -> bool:
        """Whether it ends on a figure, and that has not been decided yet."""
        return self.config.until is not None and self.ended is None

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
        """Rows in a step, on all ranks; of a stage whose size changes, those of its largest step."""
        return max(piece.size for piece in self.batch_pieces)

    @property
    def batch_pieces(self) -> tuple[BatchPiece, ...]:
        """The pieces of `batches` that the stage reaches; all where its length is not known."""
        return self.batches.pieces if self.steps is None else self.batches.until(self.steps)

    def largest_since(self, step: int) -> BatchPiece:
        """The first piece of the largest size from a step of the run on; of all where the stage has none from there."""
        within = max(0, step - (self.start or 0))
        to_come = [piece for piece in self.batches.since(within) if self.steps is None or piece.step < self.steps]
        return max(to_come or self.batch_pieces, key=lambda piece: piece.size)

    def size_at(self, step: int) -> int:
        """Rows in a step of the run that is the stage's, on all ranks."""
        return self.batches.size_at(step - self._start)

    def rows_before(self, step: int) -> int:
        """Rows of the stage before a step of the run."""
        return self.batches.rows_before(step - self._start)

    @property
    def _start(self) -> int:
        assert self.start is not None, "a step is asked of a stage whose start is known"
        return self.start

    @property
    def seq_len(self) -> int:
        return self.config.seq_len

    @property
    def row_settings(self) -> RowSettings:
        """What decides how its rows are made."""
        return RowSettings(self.seq_len, self.config.packing, self.seed)

    @property
    def goldfish(self) -> Goldfish:
        """Which targets are dropped from the loss."""
        asked = self.config.goldfish
        return NONE if asked is None else Goldfish(asked.k, asked.h)

    def steps_for(self, tokens: int) -> int:
        """The fewest steps of the stage that have this many tokens."""
        return self.batches.steps_for(-(-tokens // self.seq_len))

    @property
    def rows(self) -> int | None:
        """Rows of the whole stage."""
        return None if self.steps is None else self.batches.rows_before(self.steps)

    @property
    def tokens(self) -> int | None:
        """Tokens of the whole stage, padding included."""
        return None if self.rows is None else self.rows * self.seq_len

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
        return cls(**{each.name: getattr(stage, each.name) for each in fields(PlannedStage)})

    @property
    def end(self) -> int:
        return self.start + self.steps

    @property
    def rows(self) -> int:
        return self.batches.rows_before(self.steps)

    @property
    def shares(self) -> Mapping[str, Fraction]:
        """The shares of the stage once its fade is over."""
        return dict(zip(self.mixture.new.names, self.mixture.new.shares, strict=True))

"""A stage's tables, and `[defaults]` merged into each stage."""

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field, model_serializer

from trivium.config.batches import Batches
from trivium.config.fields import (
    Epochs,
    LossWeight,
    Name,
    Names,
    OpenFraction,
    PathText,
    Positive,
    Seed,
    Shares,
    Table,
    short_form,
)
from trivium.config.numbers import Count, Whole
from trivium.config.optimizer import Optimizer
from trivium.config.rates import StageLr

Packing = Literal["bestfit", "concat", "crop", "crop-first", "pad"]
CROPPING = ("crop", "crop-first")  # their rows hold seq_len + 1 tokens, the last one a target only
Precision = Literal["float32", "bfloat16"]
Recompute = Literal["none", "selective", "full"]
AverageWeights = Literal["uniform", "1-sqrt", "cosine", "sqrt"]
MOST_ROWS = 2**24  # of a step
MOST_COPIES = 100  # of the weights, each as large as they are
MOST_SLOTS = 2**26  # of a row: positions and pieces are counted in 32 bits
MOST_CONTEXT = 2**16  # tokens that a goldfish mask looks back
# Several keys that decide one thing: a stage that has one of them does not take another from [defaults], and an
# override of one of them takes the place of those in the file.
EITHER = (
    ("steps", "tokens", "epochs", "fraction", "minutes"),
    ("mixture", "weights", "sources"),
    ("batch_size", "batch_tokens"),
    ("average", "end_average"),
)


Rows = Annotated[Count, Field(le=MOST_ROWS)]


class BatchSize(Table):
    """Rows in a step, on all ranks: one number, or a ramp that goes up with the tokens read."""

    size: Rows | None = Field(None, examples=[256])
    """Rows of every step; batch_size = 256 is the same."""
    first: Rows | None = Field(None, alias="from", examples=[3072])
    """Rows of the stage's first step."""
    to: Rows | None = Field(None, examples=[15360])
    """Rows of a step once the ramp is over."""
    over: Count | None = Field(None, examples=["469B"])
    """Tokens of the stage over which the size goes up, linearly and rounded down: each size has an equal part of it."""
    by: Rows | None = Field(None, examples=[256])
    """Rows by which the size goes up: at the first step before which the tokens of the next size have been read."""

    @model_serializer
    def as_written(self) -> int | dict[str, int]:
        """As a config has it."""
        keys = {field.alias or name: getattr(self, name) for name, field in type(self).model_fields.items()}
        given = {key: value for key, value in keys.items() if value is not None}
        return given["size"] if list(given) == ["size"] else given

    @property
    def is_ramp(self) -> bool:
        return self.size is None

    def batches(self, seq_len: int, unit: int = 1) -> Batches:
        """The rows of every step of a checked stage; a row is `unit` of what sizes are counted in."""
        if self.size is not None:
            return Batches.constant(max(1, self.size // unit))
        first, last, by = (max(1, (count or 0) // unit) for count in (self.first, self.to, self.by))
        return Batches.ramp(first, last, by, self.over or 0, seq_len)


class BatchTokens(BatchSize):
    """Tokens in a step, on all ranks: one number, or a ramp that goes up with the tokens read."""

    size: Count | None = Field(None, examples=["512Ki"])
    """Tokens of every step; batch_tokens = "512Ki" is the same."""
    first: Count | None = Field(None, alias="from", examples=["16Mi"])
    """Tokens of the stage's first step."""
    to: Count | None = Field(None, examples=["64Mi"])
    """Tokens of a step once the ramp is over."""
    by: Count | None = Field(None, examples=["1Mi"])
    """Tokens by which a step goes up: at the first one before which the tokens of the next size have been read."""


class TokenBudget(Table):
    """A stage's length in tokens: a number, or one for each parameter of the model."""

    count: Count | None = Field(None, examples=["2B"])
    """Tokens; tokens = "2B" is the same."""
    per_parameter: Positive | None = Field(None, examples=[20])
    """Tokens for each weight of the layers' matrices and the output head; embeddings and norms do not count."""

    @model_serializer
    def as_written(self) -> int | dict[str, float]:
        """As a config has it."""
        if self.per_parameter is None:
            return self.count or 0
        return {"per_parameter": self.per_parameter}


class Fade(Table):
    """How the shares change from those of the stage before to those of this one."""

    tokens: Count | None = Field(None, examples=["50M"])
    """Tokens over which the shares change, from the stage's first row on, or around it with `center`."""
    steps: Count | None = Field(None, examples=[100])
    """Steps over which the shares change, instead of tokens."""
    shape: Literal["linear", "cosine", "sigmoid"] = "linear"
    """The curve on which the new mixture's part grows from 0 to 1."""
    steepness: Annotated[float, Field(gt=0, le=1000)] = Field(10.0, examples=[20.0])
    """With shape = "sigmoid": four times the slope in the middle, by the fade's length; at 10 it starts at 0.7%."""
    center: bool = False
    """Center the fade on the stage's start: its first half is in the last rows of the stage before."""


class SlidingRope(Table):
    """Rotary positions of sliding layers."""

    theta: Annotated[float, Field(gt=1)] | None = Field(None, examples=[500_000])
    """Base of the rotary frequencies; absent: the model's own."""
    scaling: Literal["linear", "ntk-by-parts", "yarn", "llama3"] | None = None
    """How rows longer than the trained context are reached; absent: positions are not scaled."""
    factor: Annotated[float, Field(ge=1)] | None = Field(None, examples=[4.0])
    """The row length over the trained context; needs `scaling`."""
    original_seq_len: Count | None = Field(None, examples=[4096])
    """The context the model was trained at before scaling; absent: the model's max_seq_len."""
    attention_factor: Positive | None = Field(None, examples=[1.2])
    """With scaling = "yarn": what queries and keys are multiplied by; absent: 0.1 ln(factor) + 1."""
    beta_fast: Positive = Field(32.0, examples=[32])
    """With yarn or ntk-by-parts: channels with more turns in the original context than this are not stretched."""
    beta_slow: Positive = Field(1.0, examples=[1])
    """With yarn or ntk-by-parts: channels with fewer turns than this are stretched in full."""
    low_freq_factor: Positive = Field(1.0, examples=[1.0])
    """With scaling = "llama3": channels with fewer turns in the original context than this are stretched in full."""
    high_freq_factor: Positive = Field(4.0, examples=[4.0])
    """With scaling = "llama3": channels with more turns than this are not stretched."""


class Rope(SlidingRope):
    """Rotary positions."""

    drop_layers: Annotated[tuple[Whole, ...], Field(strict=False)] | None = Field(None, examples=[[3, 7, 11]])
    """Layers, counted from 0, without rotary positions; absent: those that had none before."""
    sliding: SlidingRope | None = Field(None, examples=[{"theta": 10_000}])
    """Those of sliding layers; absent: sliding layers keep theirs, and in `[model]` without `init` have the same."""


class Reference(Table):
    """The frozen model that KL is measured to."""

    stage: Name | None = Field(None, examples=["general"])
    """The model as it was when the named stage began."""
    path: PathText | None = Field(None, examples=["runs/base"])
    """A given model of the same shape: a run's folder, one of its checkpoints, or a Hugging Face folder."""
    step: Whole | None = Field(None, examples=[4000])
    """With `path` a run's folder: the step; absent: its last checkpoint."""


class Kl(Table):
    """A penalty for leaving a frozen reference model."""

    beta: Positive | None = Field(None, examples=[0.1])
    """Weight of the KL term beside the cross-entropy."""
    direction: Literal["forward", "reverse", "nll_gap"] = "forward"
    """forward: KL(reference || policy); reverse: the other; nll_gap: difference of token losses."""
    reference: Reference | None = Field(None, examples=[{"stage": "general"}])
    """Absent: the model as it was when this stage began."""
    precision: Precision | None = None
    """Precision of the reference model; absent: the engine's precision."""


class Goldfish(Table):
    """Tokens that are dropped from the loss, so that no passage is memorised."""

    k: Annotated[Count, Field(ge=2)] = Field(50, examples=[50])
    """One of this many tokens is dropped, on average."""
    h: Annotated[Count, Field(le=MOST_CONTEXT)] = Field(50, examples=[50])
    """The tokens before a token, in its document, whose hash decides; the first ones of a document are all kept."""


class CopyEvery(Table):
    """The distance of the copies of an average: tokens or steps, counted from the run's start."""

    tokens: Count | None = Field(None, examples=["5B"])
    """Copy the weights after the step that completes each multiple of this many tokens, padding included."""
    steps: Count | None = Field(None, examples=[1000])
    """Copy the weights after each multiple of this many steps."""


class Average(Table):
    """An average of the weights that is kept beside them: `ema`, or `last` and `every`."""

    ema: OpenFraction | None = Field(None, examples=[0.999])
    """The average follows the weights: at each update, average = ema * average + (1 - ema) * weights."""
    last: Annotated[Count, Field(ge=2, le=MOST_COPIES)] | None = Field(None, examples=[12])
    """The average is the weighted mean of the last copies of the weights, as many as this; all of them are held."""
    every: Annotated[CopyEvery, short_form("tokens", Count | CopyEvery)] | None = Field(None, examples=["5B"])
    """With `last`: the distance of copies in tokens, or { steps = 1000 }."""
    weights: AverageWeights = "uniform"
    """With `last`: the decay of the learning rate that the mean imitates; uniform imitates a linear one."""


class StageEngine(Table):
    """What a stage changes in `[engine]`, from its first step on, without a new launch."""

    recompute: Recompute | None = None
    """What the backward pass computes again in this stage; absent: engine.recompute."""
    micro_batch_size: Count | None = Field(None, examples=[1])
    """Rows in one pass on one rank in this stage; absent: engine.micro_batch_size."""
    context: Count | None = Field(None, examples=[8])
    """Ranks that share each row's slots in this stage; absent: engine.parallel.context."""
    precision: Precision | None = None
    """Precision of the forward pass in this stage; absent: engine.precision."""


class StageDefaults(Table):
    """Keys of a stage that `[defaults]` may give for all stages."""

    mixture: Shares | None = Field(None, examples=[{"web": 0.8, "code": 0.2}])
    """Share of rows by source; they add up to 1."""
    weights: Shares | None = Field(None, examples=[{"web": 4, "code": 1}])
    """Relative weights by source, instead of shares; any numbers, normalised."""
    sources: Names | None = Field(None, examples=[["web", "code"]])
    """Read these sources in proportion to their tokens, instead of by shares; absent, and no shares: all sources."""
    replay: Shares | None = Field(None, examples=[{"web": 0.2}])
    """Share of rows from sources of earlier stages; weights or proportional shares divide the rest."""
    temperature: Positive = Field(1.0, examples=[2.0])
    """Shares become share ** (1 / temperature), normalised; needs weights or proportional shares."""
    fade: Annotated[Fade, short_form("tokens", Count | Fade)] | None = Field(None, examples=["50M"])
    """Tokens over which the shares change from those of the stage before."""
    seq_len: Annotated[Count, Field(le=MOST_SLOTS)] = Field(2048, examples=[2048])
    """Row length in tokens."""
    batch_size: Annotated[BatchSize, short_form("size", Rows | BatchSize)] = Field(
        BatchSize.model_construct(size=256), examples=[256]
    )
    """Rows in a step, on all ranks; or a ramp, such as { from = 3072, to = 15360, over = "469B", by = 256 }."""
    batch_tokens: Annotated[BatchTokens, short_form("size", Count | BatchTokens)] | None = Field(
        None, examples=["512Ki"]
    )
    """Tokens in a step, on all ranks, instead of rows, or a ramp of them: multiples of seq_len."""
    packing: Packing = "bestfit"
    """How documents are laid into rows."""
    document_mask: bool = True
    """Attention stays within documents; false: it goes across the documents of a row."""
    seed: Seed | None = Field(None, examples=[1234])
    """Order what has not been read yet by this seed; absent: the run's seed."""
    max_epochs: Positive | None = Field(None, examples=[4])
    """Refuse a plan in which this stage reads a source for more epochs than this."""
    lr: StageLr | None = Field(None, examples=[{"scale": 0.3}])
    """What this stage does to the learning rate."""
    rope: Rope | None = Field(None, examples=[{"theta": 500_000}])
    """Rotary base and scaling over this stage's own span; absent: the model's."""
    kl: Kl | None = Field(None, examples=[{"beta": 0.1}])
    """KL to a frozen reference; absent: none."""
    z_loss: Positive | None = Field(None, examples=[1e-4])
    """Weight of the squared log of the softmax's sum; absent: none."""
    loss_on: Literal["all", "assistant"] | None = None
    """Which tokens of conversations count in the loss; absent: as the source has it."""
    loss_weight: LossWeight | None = Field(None, examples=[{"code": 0.5}])
    """What the losses of a source's tokens are multiplied by in the objective; 1 for sources that are not named."""
    goldfish: Goldfish | None = Field(None, examples=[{"k": 50, "h": 50}])
    """Drop one of k tokens from the loss, always the same ones; absent: none."""
    reset_optimizer: bool = False
    """Start with a fresh optimizer state at the stage's first step."""
    average: Average | None = Field(None, examples=[{"ema": 0.999}])
    """Keep an average of the weights from this stage on; absent: the one of the stage before, which goes on."""
    evaluate: bool = False
    """Evaluate before the stage's first step and after its last."""
    engine: StageEngine = Field(StageEngine.model_construct(), examples=[{"recompute": "selective"}])
    """What this stage changes in `[engine]`."""


class Stage(StageDefaults):
    """A span of steps with one mixture, row length, batch size and objective."""

    name: Name | None = Field(None, examples=["general"])
    """The stage's name in plans, events and overrides; not a number."""
    steps: Count | None = Field(None, examples=[4000])
    """Length in optimizer steps."""
    tokens: Annotated[TokenBudget, short_form("count", Count | TokenBudget)] | None = Field(None, examples=["2B"])
    """Length in tokens, padding included; rounded up to whole steps. Or { per_parameter = 20 }."""
    epochs: Epochs | None = Field(None, examples=[{"chat": 1}])
    """Length in epochs: a number, or sources with the least number of epochs of each."""
    optimizer: Optimizer | None = Field(None, examples=[{"grad_clip": 0.2}])
    """Keys of `[optimizer]` that this stage changes; with a name it takes `[optimizer]`'s place from here on."""
    start_from: Literal["average"] | None = None
    """average: the weights become the average at the stage's first step; absent: training goes on with the weights."""
    end_average: bool = False
    """Keep no average from this stage on."""

    @property
    def batches(self) -> Batches:
        """Rows of every step, on all ranks, as the config has them."""
        if self.batch_tokens is None:
            return self.batch_size.batches(self.seq_len)
        return self.batch_tokens.batches(self.seq_len, unit=self.seq_len)

    @property
    def budget_tokens(self) -> int | None:
        """Length in tokens; None where it is in another unit, or for each parameter of a model that is not known."""
        return None if self.tokens is None else self.tokens.count


class Anneal(Table):
    """The last part of the run as a stage of its own; everything else is as in the stage it ends."""

    start: OpenFraction | None = Field(None, examples=[0.9])
    """The step at which it starts, as a fraction of the run's steps."""
    name: Name = Field("anneal", examples=["anneal"])
    """The stage's name."""
    mixture: Shares | None = Field(None, examples=[{"web": 0.8, "code": 0.2}])
    """Share of rows by source; they add up to 1."""
    weights: Shares | None = Field(None, examples=[{"web": 4, "code": 1}])
    """Relative weights by source, instead of shares."""
    temperature: Positive = Field(1.0, examples=[2.0])
    """Shares become share ** (1 / temperature), normalised; needs weights."""
    fade: Annotated[Fade, short_form("tokens", Count | Fade)] | None = Field(None, examples=["50M"])
    """Tokens over which the shares change to these."""
    lr: StageLr | None = Field(None, examples=[{"shape": "linear", "to": 0.0}])
    """What the stage does to the learning rate."""


def merged_stages(stages: Sequence[Stage], defaults: StageDefaults) -> tuple[Stage, ...]:
    """The stages as they will run: a key of the stage, else of `[defaults]`, else the schema's default."""
    return tuple(merged(stage, defaults) for stage in stages)


def merged(stage: Stage, defaults: StageDefaults) -> Stage:
    """One stage with the keys that `[defaults]` adds to it: tables whole, never from a neighbour."""
    given = stage.model_fields_set
    decided = {key for ways in EITHER if given & set(ways) for key in ways}
    taken = defaults.model_fields_set - given - decided
    return stage.model_copy(update={key: getattr(defaults, key) for key in sorted(taken)})

"""What the user may write: a model for every table, a doc line for every key.

Nothing here opens a file or looks at another table; rules across keys live in `check`. A key that must
be given is `None` here and asked for there, so that one wrong key never hides the problems of the others.
"""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from trivium.config.fields import (
    BelowOne,
    Betas,
    Epochs,
    Extent,
    Fraction,
    FrozenDict,
    Name,
    Names,
    NotNegative,
    OpenFraction,
    Paths,
    Positive,
    Seed,
    Shares,
    Table,
    Text,
    frozen_dict,
    short_form,
)
from trivium.config.numbers import Count, Whole
from trivium.config.sources import Source

Shape = Literal["constant", "linear", "cosine", "wsd", "inverse-sqrt"]
Packing = Literal["bestfit", "concat", "crop", "pad"]
Precision = Literal["float32", "bfloat16"]
MOST_SLOTS = 2**26  # of a row: positions and pieces are counted in 32 bits


class Fade(Table):
    """How the shares change from those of the stage before to those of this one."""

    tokens: Count | None = Field(None, examples=["50M"])
    """Tokens over which the shares change, from the stage's first row on."""
    steps: Count | None = Field(None, examples=[100])
    """Steps over which the shares change, instead of tokens."""
    shape: Literal["linear", "cosine"] = "linear"
    """The curve on which the new mixture's part grows from 0 to 1."""


class StageLr(Table):
    """What a stage does to the learning rate."""

    scale: Positive = Field(1.0, examples=[0.3])
    """Multiply the run's schedule, or the start of this stage's own shape, by this."""
    shape: Shape | None = None
    """The stage's own shape, which replaces the run's schedule; absent: the run's schedule."""
    to: Fraction = Field(0.0, examples=[0.1])
    """The learning rate at the stage's end, as a fraction of its start."""
    warmup: Extent | None = Field(None, examples=[{"steps": 2000}])
    """Warm up again from zero at the stage's start."""
    decay: Extent | None = Field(None, examples=[{"fraction": 0.2}])
    """With shape = "wsd": the length of the decay at the stage's end."""
    decay_shape: Literal["linear", "cosine", "1-sqrt"] = "linear"
    """With shape = "wsd": the form of the decay."""


class Rope(Table):
    """Rotary positions."""

    theta: Positive | None = Field(None, examples=[500_000])
    """Base of the rotary frequencies; absent: the model's own."""
    scaling: Literal["linear", "yarn"] | None = None
    """How rows longer than the trained context are reached; absent: positions are not scaled."""
    factor: Annotated[float, Field(ge=1)] | None = Field(None, examples=[4.0])
    """The row length over the trained context; needs `scaling`."""
    original_seq_len: Count | None = Field(None, examples=[4096])
    """The context the model was trained at before scaling; absent: the model's max_seq_len."""


class Reference(Table):
    """The frozen model that KL is measured to."""

    stage: Name | None = Field(None, examples=["general"])
    """The model as it was when the named stage began."""
    path: Text | None = Field(None, examples=["runs/base"])
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
    batch_size: Count = Field(256, examples=[256])
    """Rows in a step, on all ranks."""
    batch_tokens: Count | None = Field(None, examples=["512Ki"])
    """Tokens in a step, on all ranks, instead of rows: a multiple of seq_len."""
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
    reset_optimizer: bool = False
    """Start with a fresh optimizer state at the stage's first step."""
    evaluate: bool = False
    """Evaluate before the stage's first step and after its last."""


class Stage(StageDefaults):
    """A span of steps with one mixture, row length, batch size and objective."""

    name: Name | None = Field(None, examples=["general"])
    """The stage's name in plans, events and overrides; not a number."""
    steps: Count | None = Field(None, examples=[4000])
    """Length in optimizer steps."""
    tokens: Count | None = Field(None, examples=["2B"])
    """Length in tokens, padding included; rounded up to whole steps."""
    epochs: Epochs | None = Field(None, examples=[{"chat": 1}])
    """Length in epochs: a number, or sources with the least number of epochs of each."""

    @property
    def rows_of_step(self) -> int:
        """Rows in one step, on all ranks."""
        return self.batch_size if self.batch_tokens is None else self.batch_tokens // self.seq_len

    @property
    def tokens_of_step(self) -> int:
        """Tokens in one step, padding included."""
        return self.rows_of_step * self.seq_len


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


class Run(Table):
    """One folder, one config, any number of resumes."""

    name: Name | None = Field(None, examples=["my-run"])
    """The run's name and the name of its folder."""
    folder: Text = Field("runs", examples=["runs"])
    """The folder that holds the runs' folders."""
    seed: Seed = Field(1234, examples=[1234])
    """The seed of the data's order and of the initial weights."""
    anneal: Anneal | None = Field(None, examples=[{"start": 0.9, "lr": {"shape": "linear", "to": 0.0}}])
    """Short form: turn the end of the run into a stage of its own."""


class Model(Table):
    """The decoder: a size by name, or in full, or the weights of a checkpoint."""

    size: Name | None = Field(None, examples=["125m"])
    """A size by name: tiny, 10m, 60m, 125m, 350m, 760m, 1b, 3b, 8b, 70b."""
    layers: Count | None = Field(None, examples=[12])
    """Number of layers."""
    width: Count | None = Field(None, examples=[768])
    """Width of the residual stream."""
    heads: Count | None = Field(None, examples=[12])
    """Attention heads; absent: one for every 64 of width."""
    kv_heads: Count | None = Field(None, examples=[4])
    """Key and value heads; absent: the number of heads."""
    ffn: Count | None = Field(None, examples=[2048])
    """Width of the feed-forward layer; absent: 8/3 of width, rounded up to a multiple of 64."""
    vocab: Count | None = Field(None, examples=[32768])
    """Vocabulary size; absent: the tokenizer's."""
    max_seq_len: Count | None = Field(None, examples=[8192])
    """The longest row the model allows; absent: the longest of the stages."""
    qk_norm: bool = False
    """Normalise queries and keys (RMSNorm) before attention."""
    tied_embeddings: bool = False
    """Share one weight matrix between embedding and unembedding."""
    init_std: Positive = Field(0.02, examples=[0.02])
    """Standard deviation of the initial weights."""
    rope: Rope | None = Field(None, examples=[{"theta": 500_000}])
    """Rotary positions of stages that have none of their own; absent: theta 10,000."""
    init: Text | None = Field(None, examples=["runs/base"])
    """Start from these weights: a run's folder, one of its checkpoints, or a Hugging Face folder."""
    init_step: Whole | None = Field(None, examples=[4000])
    """With `init` a run's folder: the step; absent: its last checkpoint."""
    init_optimizer: bool = False
    """With `init` a run's folder: load its optimizer state too; false: the optimizer starts fresh."""


class Markers(Table):
    """Special tokens around the turns of a conversation."""

    user_start: Text | None = Field(None, examples=["<|user_start|>"])
    """Before a user's words."""
    user_end: Text | None = Field(None, examples=["<|user_end|>"])
    """After them."""
    assistant_start: Text | None = Field(None, examples=["<|assistant_start|>"])
    """Before an assistant's words."""
    assistant_end: Text | None = Field(None, examples=["<|assistant_end|>"])
    """After them."""
    call_start: Text | None = Field(None, examples=["<|call_start|>"])
    """Before an assistant's call of a tool."""
    call_end: Text | None = Field(None, examples=["<|call_end|>"])
    """After it."""
    result_start: Text | None = Field(None, examples=["<|result_start|>"])
    """Before the tool's result."""
    result_end: Text | None = Field(None, examples=["<|result_end|>"])
    """After it."""
    system_start: Text | None = Field(None, examples=["<|system_start|>"])
    """Before a system message; absent: a system message goes before the first user's words."""
    system_end: Text | None = Field(None, examples=["<|system_end|>"])
    """After it."""


class Tokenizer(Table):
    """Text to tokens."""

    kind: Literal["huggingface", "tiktoken", "bytes"] = "huggingface"
    """The package that reads `path`; bytes is built in and needs no path."""
    path: Text | None = Field(None, examples=["tokenizer.json"])
    """A tokenizer.json, a folder, or a name on the Hub; with kind = "tiktoken" a .tiktoken file."""
    bos: Text | None = Field(None, examples=["<|bos|>"])
    """The token that begins a document; absent: the one of the tokenizer's folder, or one with a well-known name."""
    eos: Text | None = Field(None, examples=["<|eos|>"])
    """The token that ends a document; absent: the one of the tokenizer's folder, or one with a well-known name."""
    markers: Markers = Field(default_factory=Markers, examples=[{"user_start": "<|user_start|>"}])
    """The tokens around the turns of a conversation; absent: tokens with well-known names."""
    chat_template: Text | None = Field(None, examples=["chat_template.jinja"])
    """A Jinja file, or a JSON file with a chat_template; absent: the folder's, where the tokenizer has no markers."""
    pattern: Text | None = Field(None, examples=[r"\p{L}+|\P{L}+"])
    """With kind = "tiktoken": the pattern by which text is split; absent: GPT-4's."""
    special_tokens: Names | None = Field(None, examples=[["<|bos|>", "<|eos|>"]])
    """With kind = "tiktoken": special tokens after the ranks; absent: one for each role, as <|bos|>."""


class GroupLr(Table):
    """Learning rates by group of parameters."""

    matrix: Positive | None = Field(None, examples=[0.02])
    """Matrices of the layers."""
    embedding: Positive | None = Field(None, examples=[3e-4])
    """The embedding."""
    unembedding: Positive | None = Field(None, examples=[3e-4])
    """The unembedding."""
    rest: Positive | None = Field(None, examples=[3e-4])
    """Norms, biases and all other parameters, and every group that is not given."""


class Momentum(Table):
    """Muon's momentum, with a warm-up that counts from the optimizer's start or reset."""

    start: BelowOne = Field(0.85, examples=[0.85])
    """Momentum at the first step."""
    end: BelowOne = Field(0.95, examples=[0.95])
    """Momentum after the warm-up."""
    steps: Whole = Field(300, examples=[300])
    """Steps of the warm-up."""


class Optimizer(Table):
    """What turns gradients into updates."""

    name: Literal["adamw", "muon"] = "adamw"
    """adamw, or muon for the layers' matrices with adamw for the rest."""
    lr: Annotated[GroupLr, short_form("rest", Positive | GroupLr)] = Field(GroupLr(rest=3e-4), examples=[3e-4])
    """The peak learning rate: one number, or { matrix, embedding, unembedding, rest }."""
    betas: Betas = Field((0.9, 0.95), examples=[[0.9, 0.95]])
    """Adam's decay rates of the averages of the gradient and of its square."""
    eps: Positive = Field(1e-8, examples=[1e-8])
    """The number that Adam adds to the root in its denominator."""
    weight_decay: NotNegative = Field(0.1, examples=[0.1])
    """Decoupled weight decay."""
    no_decay: Annotated[
        tuple[Literal["norms", "biases", "embeddings"], ...], Field(strict=False, examples=[["norms"]])
    ] = ("norms", "biases", "embeddings")
    """Parameters without weight decay."""
    momentum: Momentum = Field(Momentum(), examples=[{"start": 0.85, "end": 0.95, "steps": 300}])
    """Muon's momentum and its warm-up."""
    grad_clip: Positive | None = Field(None, examples=[1.0])
    """Clip the norm of the gradient to this; absent: no clipping."""


class Schedule(Table):
    """The learning rate over the whole run, as a multiplier of optimizer.lr."""

    shape: Shape = "constant"
    """constant, linear, cosine, wsd (warm-up, stable, decay) or inverse-sqrt."""
    warmup: Extent | None = Field(None, examples=[{"steps": 2000}])
    """The length of the rise from zero at the run's start."""
    decay: Extent | None = Field(None, examples=[{"fraction": 0.2}])
    """With wsd: the length of the decay at the horizon's end; absent: a fifth."""
    decay_shape: Literal["linear", "cosine", "1-sqrt"] = "linear"
    """With wsd: the form of the decay."""
    to: Fraction = Field(0.0, examples=[0.1])
    """The learning rate at the schedule's end, as a fraction of the peak."""
    horizon: Extent | None = Field(None, examples=[{"tokens": "100B"}])
    """The span that the schedule covers; absent: the run's steps."""


class Parallel(Table):
    """How ranks share the model, in JAX all of their devices; the product is the number of ranks (or devices)."""

    replicate: Count = Field(1, examples=[1])
    """Copies of the model (hybrid sharding)."""
    shard: Count | None = Field(None, examples=[8])
    """Ranks that share one copy's parameters (FSDP); absent: all ranks that remain."""
    tensor: Count = Field(1, examples=[1])
    """Ranks that share each weight matrix (tensor parallelism)."""


class Engine(Table):
    """The framework that trains, and how it runs."""

    name: Literal["torch", "jax"] = "torch"
    """The framework: torch or jax."""
    device: Literal["cuda", "mps", "tpu", "cpu"] | None = None
    """The kind of device; absent: the first of these that is available; only JAX has tpu."""
    precision: Precision | None = None
    """Precision of the forward pass; absent: bfloat16 on a GPU, float32 on a CPU."""
    compile: bool = False
    """Compile the model (torch.compile; JAX always compiles)."""
    micro_batch_size: Count | None = Field(None, examples=[8])
    """Rows in one pass on one rank; absent: the rank's whole shard."""
    activation_checkpointing: bool = False
    """Compute activations again in the backward pass instead of keeping them: far less memory, a third more time."""
    parallel: Parallel = Field(Parallel(), examples=[{"shard": 8}])
    """How ranks share the model."""
    deterministic: bool = True
    """Use only operations that give the same bits each time."""


class LoaderSettings(Table):
    """How batches get to the engine; no key here changes their content."""

    prefetch: Whole = Field(2, examples=[2])
    """Batches that are made ahead of time in the background."""
    workers: Whole = Field(1, examples=[1])
    """Threads that make batches."""


class Cadence(Table):
    """How often: every n steps or every n minutes."""

    steps: Count | None = Field(None, examples=[1000])
    """Steps from one to the next."""
    minutes: Positive | None = Field(None, examples=[30])
    """Minutes from one to the next."""


class Checkpoint(Table):
    """When the run's state is written, and what is kept."""

    every: Annotated[Cadence, short_form("steps", Count | Cadence)] | None = Field(None, examples=[1000])
    """Write a checkpoint every n steps, or every { minutes = 30 }; absent: at stage boundaries and at the end."""
    keep: Count = Field(3, examples=[3])
    """Keep this many of the latest checkpoints; those at stage boundaries and the final one are always kept."""
    keep_every: Count | None = Field(None, examples=[10_000])
    """Keep every checkpoint at a multiple of this many steps for good; absent: none."""
    background: bool = Field(True, alias="async")
    """Write checkpoints in the background, while training continues."""
    copy_to: Text | None = Field(None, examples=["/backup/runs"])
    """Copy checkpoints in the background to this second folder of runs; absent: no copy."""


StepSpan = Annotated[tuple[Whole, Count], Field(strict=False)]


class Guard(Table):
    """What happens to steps that go wrong; an update that is not finite is always skipped."""

    skip_spikes: bool = False
    """Skip the update of a step whose loss spikes; false: the spike is only reported, with its rows."""
    spike_deviations: Positive = Field(8.0, examples=[8.0])
    """A spike is a loss this many robust deviations above the median of the stage's recent losses."""
    max_consecutive_skips: Count = Field(5, examples=[5])
    """Stop the run after this many skipped updates in a row."""
    skip_steps: Annotated[tuple[StepSpan, ...], Field(strict=False, examples=[[[41300, 41350]]])] = ()
    """Steps whose rows are skipped, as pairs: the first skipped step, and the first that is trained again."""
    stall_minutes: Positive = Field(30.0, examples=[30])
    """Stop a run that made no progress for this many minutes, and write every rank's stacks to its folder."""


class AskedTask(Table):
    """A task whose questions the model answers."""

    task: Name | None = Field(None, examples=["spelling"])
    """mmlu, arc, gsm8k, spelling or counting; its test split."""
    path: Paths | None = Field(None, examples=["data/arc"])
    """The task's files; absent: the Hub, or for spelling and counting a list of common words."""
    subset: Name | None = Field(None, examples=["ARC-Easy"])
    """Which subset of the task."""

    @property
    def name(self) -> str:
        """What its score is called: `spelling`, `arc ARC-Challenge`."""
        return " ".join(filter(None, (self.task, self.subset)))


class Evaluate(Table):
    """Validation, scores and texts: when, on what, how much."""

    every: Count | None = Field(None, examples=[500])
    """Steps between evaluations; absent: only where a stage has evaluate = true."""
    sources: Names | None = Field(None, examples=[["web"]])
    """Evaluate on the held-out documents of these sources; absent: those of the stage's mixture."""
    mixture: Shares | None = Field(None, examples=[{"web": 1.0}])
    """Evaluate on this mixture, by share, instead."""
    tokens: Count = Field(1_000_000, examples=["1M"])
    """Tokens of one evaluation."""
    tasks: Annotated[
        tuple[Annotated[AskedTask, short_form("task", Name | AskedTask)], ...],
        Field(strict=False, examples=[["spelling", "counting"]]),
    ] = ()
    """Tasks that are scored, by name or as { task, path, subset }, where a stage has evaluate = true."""
    tasks_every: Count | None = Field(None, examples=[1000])
    """Steps between scores; absent: only where a stage has evaluate = true."""
    questions: Count = Field(100, examples=[100])
    """Ask this many questions of each task, evenly spread over its test split."""
    max_new_tokens: Count = Field(128, examples=[128])
    """The most tokens of an answer, and of a sampled text."""
    prompts: Names | None = Field(None, examples=[["Once upon a time"]])
    """Texts that the model continues at the start of each stage and at the end of the run."""


class Track(Table):
    """Where figures go beside events.jsonl."""

    trackers: Annotated[
        tuple[Literal["tensorboard", "wandb"], ...], Field(strict=False, examples=[["tensorboard"]])
    ] = ()
    """The experiment trackers that get the figures: tensorboard, wandb."""
    every: Count = Field(1, examples=[10])
    """Steps between lines in the terminal, and between the steps that TensorBoard and wandb get."""


class Config(Table):
    """A run's config: what the model reads, and when."""

    run: Run = Run()
    """The run's name, folder and seed."""
    model: Model = Model()
    """The decoder."""
    tokenizer: Tokenizer | None = None
    """Text to tokens; absent: the token files' own, or bytes."""
    optimizer: Optimizer = Optimizer()
    """AdamW, or Muon with AdamW."""
    schedule: Schedule = Schedule()
    """The learning rate over the run."""
    engine: Engine = Engine()
    """torch or jax, and how they run."""
    loader: LoaderSettings = LoaderSettings()
    """How batches get to the engine."""
    checkpoint: Checkpoint = Checkpoint()
    """When the run's state is written."""
    guard: Guard = Guard()
    """What happens to steps that go wrong."""
    evaluate: Evaluate = Evaluate()
    """Validation."""
    track: Track = Track()
    """TensorBoard and wandb."""
    defaults: StageDefaults = StageDefaults()
    """Values of keys that a stage does not have."""
    sources: Annotated[Mapping[str, Source], frozen_dict] = Field(default_factory=FrozenDict)
    """Named collections of documents."""
    stages: Annotated[tuple[Stage, ...], Field(strict=False)] = ()
    """The stages, in order."""

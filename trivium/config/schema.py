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
    """How the shares move from the stage before to this one."""

    tokens: Count | None = Field(None, examples=["50M"])
    """Tokens over which the shares move, from the stage's first row on."""
    steps: Count | None = Field(None, examples=[100])
    """Steps over which the shares move, instead of tokens."""
    shape: Literal["linear", "cosine"] = "linear"
    """How the new mixture's part grows from 0 to 1."""


class StageLr(Table):
    """What a stage does to the learning rate."""

    scale: Positive = Field(1.0, examples=[0.3])
    """Multiplies the run's schedule, or the start of this stage's own shape."""
    shape: Shape | None = None
    """A shape over this stage's own span that replaces the run's schedule."""
    to: Fraction = Field(0.0, examples=[0.1])
    """Where the shape ends, as a fraction of its start."""
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
    """How positions beyond the trained context are squeezed in; absent: not at all."""
    factor: Annotated[float, Field(ge=1)] | None = Field(None, examples=[4.0])
    """How many times longer than the trained context; needs `scaling`."""
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
    """In which the reference is held; absent: the engine's precision."""


class StageDefaults(Table):
    """What a stage may say and what `[defaults]` may say for all of them."""

    mixture: Shares | None = Field(None, examples=[{"web": 0.8, "code": 0.2}])
    """Share of rows by source; they add up to 1."""
    weights: Shares | None = Field(None, examples=[{"web": 4, "code": 1}])
    """Relative weights by source, instead of shares; any numbers, normalised."""
    sources: Names | None = Field(None, examples=[["web", "code"]])
    """Which sources, in proportion to their tokens, instead of shares; absent, and no shares: all."""
    replay: Shares | None = Field(None, examples=[{"web": 0.2}])
    """Share of rows from sources read before, beside weights or proportional shares, which share out the rest."""
    temperature: Positive = Field(1.0, examples=[2.0])
    """Shares become share ** (1 / temperature), normalised; needs weights or proportional shares."""
    fade: Annotated[Fade, short_form("tokens", Count | Fade)] | None = Field(None, examples=["50M"])
    """Tokens over which shares move from the stage before to this one."""
    seq_len: Annotated[Count, Field(le=MOST_SLOTS)] = Field(2048, examples=[2048])
    """Row length in tokens."""
    batch_size: Count = Field(256, examples=[256])
    """Rows in a step, on all ranks."""
    batch_tokens: Count | None = Field(None, examples=["512Ki"])
    """Tokens in a step, on all ranks, instead of rows: a multiple of seq_len."""
    packing: Packing = "bestfit"
    """How documents are laid into rows."""
    documents: Literal["masked", "joined"] = "masked"
    """Attention within documents, or across them."""
    seed: Seed | None = Field(None, examples=[1234])
    """Reorders what is unread; absent: the run's seed."""
    max_epochs: Positive | None = Field(None, examples=[4])
    """The most often that any source may be read within this stage."""
    lr: StageLr | None = Field(None, examples=[{"scale": 0.3}])
    """What this stage does to the learning rate."""
    rope: Rope | None = Field(None, examples=[{"theta": 500_000}])
    """Rotary base and scaling over this stage's own span; absent: the model's."""
    kl: Kl | None = Field(None, examples=[{"beta": 0.1}])
    """KL to a frozen reference; absent: none."""
    z_loss: Positive | None = Field(None, examples=[1e-4])
    """Weight of the squared log of the softmax's sum; absent: none."""
    loss_on: Literal["all", "assistant"] | None = None
    """In conversations: learn everything, or the assistant's words; absent: what the source says."""
    reset_optimizer: bool = False
    """Start with a fresh optimizer state at the stage's first step."""
    evaluate: bool = False
    """Evaluate before the stage's first step and after its last."""


class Stage(StageDefaults):
    """A span of steps with one mixture, row length, batch size and objective."""

    name: Name | None = Field(None, examples=["general"])
    """How the stage is called in plans, events and overrides; not a number."""
    steps: Count | None = Field(None, examples=[4000])
    """Length in optimizer steps."""
    tokens: Count | None = Field(None, examples=["2B"])
    """Length in tokens, padding included; rounded up to whole steps."""
    epochs: Epochs | None = Field(None, examples=[{"chat": 1}])
    """Length in epochs: a number, or sources and how often each is read at least."""

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
    """Where it starts, as a fraction of the run's steps."""
    name: Name = Field("anneal", examples=["anneal"])
    """The stage's name."""
    mixture: Shares | None = Field(None, examples=[{"web": 0.8, "code": 0.2}])
    """Share of rows by source; they add up to 1."""
    weights: Shares | None = Field(None, examples=[{"web": 4, "code": 1}])
    """Relative weights by source, instead of shares."""
    temperature: Positive = Field(1.0, examples=[2.0])
    """Shares become share ** (1 / temperature), normalised; needs weights."""
    fade: Annotated[Fade, short_form("tokens", Count | Fade)] | None = Field(None, examples=["50M"])
    """Tokens over which the shares move there."""
    lr: StageLr | None = Field(None, examples=[{"shape": "linear", "to": 0.0}])
    """What the stage does to the learning rate."""


class Run(Table):
    """One folder, one config, any number of resumes."""

    name: Name | None = Field(None, examples=["my-run"])
    """The run's name and the name of its folder."""
    folder: Text = Field("runs", examples=["runs"])
    """Where runs live."""
    seed: Seed = Field(1234, examples=[1234])
    """Decides the order of all data and the initial weights."""
    anneal: Anneal | None = Field(None, examples=[{"start": 0.9, "lr": {"shape": "linear", "to": 0.0}}])
    """Short form: turn the end of the run into one more stage."""


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
    """Key and value heads; absent: as many as heads."""
    ffn: Count | None = Field(None, examples=[2048])
    """Width of the feed-forward layer; absent: 8/3 of width, rounded up to a multiple of 64."""
    vocab: Count | None = Field(None, examples=[32768])
    """Vocabulary size; absent: the tokenizer's."""
    max_seq_len: Count | None = Field(None, examples=[8192])
    """The longest row the model allows; absent: the longest of the stages."""
    qk_norm: bool = False
    """Normalise queries and keys."""
    tied_embeddings: bool = False
    """One matrix for embedding and unembedding."""
    init_std: Positive = Field(0.02, examples=[0.02])
    """Standard deviation of the initial weights."""
    rope: Rope | None = Field(None, examples=[{"theta": 500_000}])
    """Rotary positions of stages that do not say their own; absent: theta 10,000."""
    init: Text | None = Field(None, examples=["runs/base"])
    """Start from these weights: a run's folder, one of its checkpoints, or a Hugging Face folder."""
    init_step: Whole | None = Field(None, examples=[4000])
    """With `init` a run's folder: the step; absent: its last checkpoint."""
    init_optimizer: bool = False
    """With `init` a run's folder: go on with its optimizer's state too; else the optimizer starts fresh."""


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
    """Before what an assistant asks of a tool."""
    call_end: Text | None = Field(None, examples=["<|call_end|>"])
    """After it."""
    result_start: Text | None = Field(None, examples=["<|result_start|>"])
    """Before what the tool answered."""
    result_end: Text | None = Field(None, examples=["<|result_end|>"])
    """After it."""
    system_start: Text | None = Field(None, examples=["<|system_start|>"])
    """Before a system message; where there is none, it goes before the first user's words."""
    system_end: Text | None = Field(None, examples=["<|system_end|>"])
    """After it."""


class Tokenizer(Table):
    """Text to tokens."""

    kind: Literal["huggingface", "tiktoken", "bytes"] = "huggingface"
    """What reads `path`; bytes is built in and needs none."""
    path: Text | None = Field(None, examples=["tokenizer.json"])
    """A tokenizer.json, a folder, or a name on the Hub; with kind = "tiktoken" a .tiktoken file."""
    bos: Text | None = Field(None, examples=["<|bos|>"])
    """The token that begins a document; absent: what the folder says, or a well-known name."""
    eos: Text | None = Field(None, examples=["<|eos|>"])
    """The token that ends a document; absent: what the folder says, or a well-known name."""
    markers: Markers = Field(default_factory=Markers, examples=[{"user_start": "<|user_start|>"}])
    """The tokens around the turns of a conversation; absent: well-known names."""
    template: Text | None = Field(None, examples=["chat_template.jinja"])
    """A Jinja file, or a JSON file with a chat_template; absent: the folder's, where there are no markers."""
    pattern: Text | None = Field(None, examples=[r"\p{L}+|\P{L}+"])
    """With kind = "tiktoken": how text is split; absent: as for GPT-4."""
    special: Names | None = Field(None, examples=[["<|bos|>", "<|eos|>"]])
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
    """Norms, biases and whatever else; also what a group that is not given takes."""


class Momentum(Table):
    """Muon's momentum, with a warm-up that counts from the optimizer's start or reset."""

    start: BelowOne = Field(0.85, examples=[0.85])
    """At the first step."""
    end: BelowOne = Field(0.95, examples=[0.95])
    """After the warm-up."""
    steps: Whole = Field(300, examples=[300])
    """Length of the warm-up."""


class Optimizer(Table):
    """What turns gradients into updates."""

    name: Literal["adamw", "muon"] = "adamw"
    """adamw, or muon for the layers' matrices with adamw for the rest."""
    lr: Annotated[GroupLr, short_form("rest", Positive | GroupLr)] = Field(GroupLr(rest=3e-4), examples=[3e-4])
    """The peak learning rate: one number, or { matrix, embedding, unembedding, rest }."""
    betas: Betas = Field((0.9, 0.95), examples=[[0.9, 0.95]])
    """Adam's averages of gradient and square."""
    eps: Positive = Field(1e-8, examples=[1e-8])
    """Adam's floor under the root."""
    weight_decay: NotNegative = Field(0.1, examples=[0.1])
    """Decoupled weight decay."""
    no_decay: Annotated[
        tuple[Literal["norms", "biases", "embeddings"], ...], Field(strict=False, examples=[["norms"]])
    ] = ("norms", "biases", "embeddings")
    """What weight decay leaves alone."""
    momentum: Momentum = Field(Momentum(), examples=[{"start": 0.85, "end": 0.95, "steps": 300}])
    """Muon's momentum and its warm-up."""
    clip: Positive | None = Field(None, examples=[1.0])
    """Largest norm of the gradient; absent: no clipping."""


class Schedule(Table):
    """The learning rate over the whole run, as a multiplier of optimizer.lr."""

    shape: Shape = "constant"
    """constant, linear, cosine, wsd (warm-up, stable, decay) or inverse-sqrt."""
    warmup: Extent | None = Field(None, examples=[{"steps": 2000}])
    """Rise from zero at the run's start."""
    decay: Extent | None = Field(None, examples=[{"fraction": 0.2}])
    """With wsd: the length of the decay at the horizon's end; absent: a fifth."""
    decay_shape: Literal["linear", "cosine", "1-sqrt"] = "linear"
    """With wsd: the form of the decay."""
    to: Fraction = Field(0.0, examples=[0.1])
    """Where the schedule ends, as a fraction of the peak."""
    horizon: Extent | None = Field(None, examples=[{"tokens": "100B"}])
    """The span that the schedule covers; absent: the run's steps."""


class Parallel(Table):
    """How ranks share the model, in JAX all of their devices; the product is how many there are."""

    replicate: Count = Field(1, examples=[1])
    """Copies of the model (hybrid sharding)."""
    shard: Count | None = Field(None, examples=[8])
    """Ranks that share one copy's parameters (FSDP); absent: all that are left."""
    tensor: Count = Field(1, examples=[1])
    """Ranks that share each matrix (tensor parallelism)."""


class Engine(Table):
    """Owner of arrays and devices."""

    name: Literal["torch", "jax"] = "torch"
    """torch or jax."""
    device: Literal["cuda", "mps", "tpu", "cpu"] | None = None
    """Absent: found by itself, in this order; tpu is JAX's alone."""
    precision: Precision | None = None
    """Of the forward pass; absent: bfloat16 on a GPU, float32 on a CPU."""
    compile: bool = False
    """Compile the model."""
    micro_batch: Count | None = Field(None, examples=[8])
    """Rows in one pass on one rank; absent: the rank's whole shard."""
    recompute_activations: bool = False
    """Compute activations again in the backward pass: far less memory, a third more time."""
    parallel: Parallel = Field(Parallel(), examples=[{"shard": 8}])
    """How ranks share the model."""
    deterministic: bool = True
    """Only operations that give the same bits each time."""


class LoaderSettings(Table):
    """How batches get to the engine; nothing here changes what is in them."""

    prefetch: Whole = Field(2, examples=[2])
    """Batches made ahead in the background."""
    workers: Whole = Field(1, examples=[1])
    """Threads that make them."""


class Cadence(Table):
    """How often: every so many steps or minutes."""

    steps: Count | None = Field(None, examples=[1000])
    """Every so many steps."""
    minutes: Positive | None = Field(None, examples=[30])
    """Every so many minutes."""


class Checkpoint(Table):
    """When the run's state is written, and what is kept."""

    every: Annotated[Cadence, short_form("steps", Count | Cadence)] | None = Field(None, examples=[1000])
    """Steps, or { minutes = 30 }; absent: at stage boundaries and at the end."""
    keep: Count = Field(3, examples=[3])
    """How many of the last ones stay; boundaries and the final one always do."""
    milestones: Count | None = Field(None, examples=[10_000])
    """Checkpoints at multiples of so many steps stay for good; absent: none does."""
    background: bool = Field(True, alias="async")
    """Write while training goes on."""
    copy_to: Text | None = Field(None, examples=["/backup/runs"])
    """A second folder of runs, to which checkpoints are copied in the background; absent: none."""


StepSpan = Annotated[tuple[Whole, Count], Field(strict=False)]


class Guard(Table):
    """What happens to steps that go wrong; an update that is not finite is always left out."""

    skip_spikes: bool = False
    """Leave out the update of a step whose loss spikes; else it is told of, with its rows."""
    spike_deviations: Positive = Field(8.0, examples=[8.0])
    """A spike is a loss so many robust deviations above the median of the stage's recent ones."""
    max_consecutive_skips: Count = Field(5, examples=[5])
    """So many updates left out in a row end the run."""
    skip_steps: Annotated[tuple[StepSpan, ...], Field(strict=False, examples=[[[41300, 41350]]])] = ()
    """Steps whose rows are left out, as pairs: the first step, and the first that is read again."""
    stall_minutes: Positive = Field(30.0, examples=[30])
    """A run without progress for so long ends, with the stacks of every rank in its folder."""


class AskedTask(Table):
    """A task whose questions the model answers."""

    task: Name | None = Field(None, examples=["spelling"])
    """mmlu, arc, gsm8k, spelling or counting; its test split."""
    path: Paths | None = Field(None, examples=["data/arc"])
    """Its files; absent: the Hub, or for spelling and counting a list of common words."""
    subset: Name | None = Field(None, examples=["ARC-Easy"])
    """Which subset of the task."""

    @property
    def name(self) -> str:
        """What its score is called: `spelling`, `arc ARC-Challenge`."""
        return " ".join(filter(None, (self.task, self.subset)))


class Evaluate(Table):
    """Validation, scores and texts: when, on what, how much."""

    every: Count | None = Field(None, examples=[500])
    """Steps between evaluations; absent: only where a stage asks."""
    sources: Names | None = Field(None, examples=[["web"]])
    """Which sources' held-out documents; absent: those of the stage's mixture."""
    mixture: Shares | None = Field(None, examples=[{"web": 1.0}])
    """A mixture of its own, by share."""
    tokens: Count = Field(1_000_000, examples=["1M"])
    """Tokens of one evaluation."""
    tasks: Annotated[
        tuple[Annotated[AskedTask, short_form("task", Name | AskedTask)], ...],
        Field(strict=False, examples=[["spelling", "counting"]]),
    ] = ()
    """Tasks that are scored, by name or as { task, path, subset }, where a stage says evaluate."""
    tasks_every: Count | None = Field(None, examples=[1000])
    """Steps between scores; absent: only where a stage asks."""
    questions: Count = Field(100, examples=[100])
    """Questions of each task, evenly spread over its test split."""
    answer_tokens: Count = Field(128, examples=[128])
    """The longest answer, and the longest sampled text."""
    prompts: Names | None = Field(None, examples=[["Once upon a time"]])
    """Texts that the model goes on with at the start of each stage and at the end of the run."""


class Track(Table):
    """Where figures go beside events.jsonl."""

    sinks: Annotated[tuple[Literal["tensorboard", "wandb"], ...], Field(strict=False, examples=[["tensorboard"]])] = ()
    """tensorboard, wandb."""
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
    """What stages take where they do not say it themselves."""
    sources: Annotated[Mapping[str, Source], frozen_dict] = Field(default_factory=FrozenDict)
    """Named collections of documents."""
    stages: Annotated[tuple[Stage, ...], Field(strict=False)] = ()
    """The stages, in order."""

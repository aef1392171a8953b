"""What the user may write: a model for every table, a doc line for every key.

Nothing here opens a file or looks at another table; rules across keys are in `rules/`. A key that must
be given is `None` here and asked for there, so that one wrong key never hides the problems of the others.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Annotated, Any, Literal

from pydantic import Field

from trivium.config.engine import Engine
from trivium.config.fields import (
    FimTokens,
    FrozenDict,
    Name,
    Names,
    Paths,
    PathText,
    Positive,
    Seed,
    Shares,
    StepSpan,
    Table,
    Text,
    all_tables,
    doc_lines,
    frozen_dict,
    short_form,
)
from trivium.config.numbers import Count, Whole
from trivium.config.optimizer import Optimizer, Plain
from trivium.config.rates import Schedule
from trivium.config.sources import FILES, Columns, Source, ViewSource
from trivium.config.stages import Anneal, Rope, Stage, StageDefaults


class Run(Table):
    """One folder, one config, any number of resumes."""

    name: Name | None = Field(None, examples=["my-run"])
    """The run's name and the name of its folder."""
    folder: PathText = Field("runs", examples=["runs"])
    """The folder that holds the runs' folders."""
    seed: Seed = Field(1234, examples=[1234])
    """The seed of the data's order and of the initial weights."""
    anneal: Anneal | None = Field(None, examples=[{"start": 0.9, "lr": {"shape": "linear", "to": 0.0}}])
    """Short form: turn the end of the run into a stage of its own."""


@dataclass(frozen=True, slots=True)
class Size:
    """A decoder's shape; the name counts its parameters, embeddings included, at a vocabulary of 32k (10m: 8k)."""

    layers: int
    width: int
    heads: int
    kv_heads: int
    ffn: int


SIZES = {
    "tiny": Size(layers=2, width=64, heads=2, kv_heads=2, ffn=192),
    "10m": Size(layers=6, width=256, heads=4, kv_heads=4, ffn=704),
    "60m": Size(layers=8, width=512, heads=8, kv_heads=8, ffn=1408),
    "125m": Size(layers=12, width=768, heads=12, kv_heads=12, ffn=2048),
    "350m": Size(layers=24, width=1024, heads=16, kv_heads=16, ffn=2816),
    "760m": Size(layers=24, width=1536, heads=16, kv_heads=8, ffn=4096),
    "1b": Size(layers=16, width=2048, heads=32, kv_heads=8, ffn=8192),
    "3b": Size(layers=28, width=3072, heads=24, kv_heads=8, ffn=8192),
    "8b": Size(layers=32, width=4096, heads=32, kv_heads=8, ffn=14336),
    "70b": Size(layers=80, width=8192, heads=64, kv_heads=8, ffn=28672),
}


OWN_FAMILY, ANY_FAMILY = "trivium", "transformers"  # ours; and whatever a folder or a config.json is of
LAYER_WIDTH, DIAL_HEAD_DIM = 64, 128  # of a model that `depth` describes: width for every layer, and of a head


class Model(Table):
    """The decoder: a size by name, or in full, or the weights of a checkpoint; or a model of transformers."""

    family: Name | None = Field(None, examples=["olmo3"])
    """trivium, a model_type of transformers, "transformers", or package.module:function of an installed package."""
    size: Name | None = Field(None, examples=["125m"])
    """A size by name: tiny, 10m, 60m, 125m, 350m, 760m, 1b, 3b, 8b, 70b."""
    depth: Annotated[Count, Field(le=1000)] | None = Field(None, examples=[12])
    """One dial instead: this many layers, and by nanochat's rules width, heads, learning rates, batch and length."""
    layers: Annotated[Count, Field(le=10_000)] | None = Field(None, examples=[12])
    """Number of layers."""
    width: Count | None = Field(None, examples=[768])
    """Width of the residual stream."""
    heads: Count | None = Field(None, examples=[12])
    """Attention heads; absent: one for every 64 of width."""
    kv_heads: Count | None = Field(None, examples=[4])
    """Key and value heads; absent: the number of heads."""
    head_dim: Count | None = Field(None, examples=[128])
    """Width of a head; absent: width over heads."""
    ffn: Count | None = Field(None, examples=[2048])
    """Width of the feed-forward layer; absent: 8/3 of width, rounded up to a multiple of 64."""
    vocab: Count | None = Field(None, examples=[32768])
    """Vocabulary size; absent: the tokenizer's. More than `init` has: new rows are the mean of the others."""
    max_seq_len: Count | None = Field(None, examples=[8192])
    """The longest row the model allows; absent: the longest of the stages."""
    qk_norm: bool | Literal["joint"] = False
    """Normalise queries and keys (RMSNorm) before attention: each head by itself, or "joint", all heads together."""
    qkv_bias: bool = False
    """Add a trained vector to queries, keys and values, as in Qwen 2.5."""
    norm: Literal["before", "after", "both"] = "before"
    """Where a layer's norms are: before its sublayers, after them (OLMo 2), or both (Gemma)."""
    activation: Literal["silu", "gelu", "gelu_tanh", "xielu"] = "silu"
    """Of the feed-forward layer; xielu has two trained numbers, as in Apertus."""
    gated: bool = True
    """The feed-forward layer multiplies two projections, one of them activated; false: it activates one."""
    window: Count | None = Field(None, examples=[4096])
    """Tokens that a token sees in sliding layers, itself included; absent: no layer slides."""
    layers_pattern: Annotated[str, Field(pattern="^[SL]{1,10000}$")] | None = Field(None, examples=["SSSL"])
    """With `window`: S slides, L does not; repeated over all layers, the last one too. Absent: all layers slide."""
    rotary_dim: Annotated[Count, Field(multiple_of=2)] | None = Field(None, examples=[64])
    """Rotate the first channels of a head alone; absent: all of them."""
    attention_scale: Positive | None = Field(None, examples=[0.0625])
    """What queries times keys are multiplied by; absent: 1 / sqrt(head_dim)."""
    attention_softcap: Positive | None = Field(None, examples=[50.0])
    """Cap attention's scores s to c tanh(s / c), as in Gemma 2."""
    logit_softcap: Positive | None = Field(None, examples=[30.0])
    """The same of logits."""
    logit_scale: Positive = Field(1.0, examples=[0.5])
    """What logits are multiplied by, before a cap."""
    embedding_scale: Positive = Field(1.0, examples=[45.25])
    """What embeddings are multiplied by before the first layer; Gemma's is sqrt(width)."""
    tied_embeddings: bool = False
    """Share one weight matrix between embedding and unembedding."""
    init_std: Positive = Field(0.02, examples=[0.02])
    """Standard deviation of the initial weights."""
    norm_eps: Positive = Field(1e-6, examples=[1e-5])
    """The number that a norm adds to the mean square under its root."""
    no_rope_every: Annotated[Count, Field(ge=2)] | None = Field(None, examples=[4])
    """Every nth layer has no rotary positions, as in SmolLM3; absent: all layers have."""
    rope: Rope | None = Field(None, examples=[{"theta": 500_000}])
    """Rotary positions of stages that have none of their own; absent: theta 10,000."""
    init: PathText | None = Field(None, examples=["runs/base"])
    """Start from these weights: a run's folder, one of its checkpoints, or a Hugging Face folder."""
    init_step: Whole | None = Field(None, examples=[4000])
    """With `init` a run's folder: the step; absent: its last checkpoint."""
    init_optimizer: bool = False
    """With `init` a run's folder: load its optimizer state too; false: the optimizer starts fresh."""
    config: PathText | None = Field(None, examples=["shapes/olmo3.json"])
    """With a family of transformers: a config.json (or its folder) that has the shape; absent: layers and width."""
    options: Annotated[Mapping[str, Plain | list[Plain]], frozen_dict] = Field(
        default_factory=FrozenDict, examples=[{"sliding_window": 4096}]
    )
    """With a family of transformers: further keys of its config.json, by their own names."""

    @property
    def is_foreign(self) -> bool:
        """Whether transformers is asked for by name."""
        return self.family not in (None, OWN_FAMILY) and not self.is_function

    @property
    def is_function(self) -> bool:
        """Whether a function of an installed package makes the model."""
        return self.family is not None and ":" in self.family

    @property
    def of_depth(self) -> "Model":
        """With the layers, the width and the heads that `depth` stands for, where they are not written."""
        assert self.depth is not None, "there is a dial"
        width = self.width or -(-self.depth * LAYER_WIDTH // DIAL_HEAD_DIM) * DIAL_HEAD_DIM
        heads = self.heads or max(1, width // (self.head_dim or DIAL_HEAD_DIM))
        return self.model_copy(update={"layers": self.depth, "width": width, "heads": heads})


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


class TrainTokenizer(Table):
    """How a tokenizer is made that does not exist yet."""

    vocab: Count = Field(32_768, examples=[4096])
    """The number of tokens, special ones included."""


class Tokenizer(Table):
    """Text to tokens."""

    kind: Literal["huggingface", "tiktoken", "bytes"] = "huggingface"
    """The package that reads `path`; bytes is built in and needs no path."""
    path: PathText | None = Field(None, examples=["tokenizer.json"])
    """A tokenizer.json, a folder, or a name on the Hub; with kind = "tiktoken" a .tiktoken file."""
    train: TrainTokenizer | None = Field(None, examples=[{"vocab": 4096}])
    """Where the folder `path` does not exist, train a byte-level BPE on the config's sources of text, and write it."""
    bos: Text | None = Field(None, examples=["<|bos|>"])
    """The token that begins a document; absent: the one of the tokenizer's folder, or one with a well-known name."""
    eos: Text | None = Field(None, examples=["<|eos|>"])
    """The token that ends a document; absent: the one of the tokenizer's folder, or one with a well-known name."""
    markers: Markers = Field(default_factory=Markers, examples=[{"user_start": "<|user_start|>"}])
    """The tokens around the turns of a conversation; absent: tokens with well-known names."""
    chat_template: PathText | None = Field(None, examples=["chat_template.jinja"])
    """A Jinja file, or a JSON file with a chat_template; absent: the folder's, where the tokenizer has no markers."""
    pattern: Text | None = Field(None, examples=[r"\p{L}+|\P{L}+"])
    """With kind = "tiktoken": the pattern by which text is split; absent: GPT-4's."""
    special_tokens: Names | None = Field(None, examples=[["<|bos|>", "<|eos|>"]])
    """With kind = "tiktoken": special tokens after the ranks; absent: one for each role, as <|bos|>."""
    fim_tokens: FimTokens | None = Field(None, examples=[["<fim_prefix>", "<fim_suffix>", "<fim_middle>"]])
    """The tokens before prefix, suffix and middle, for sources with fim; absent: tokens with well-known names."""


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
    copy_to: PathText | None = Field(None, examples=["/backup/runs"])
    """Copy checkpoints in the background to this second folder of runs; absent: no copy."""


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
    """mmlu, arc, gsm8k, spelling, counting or needle; its test split. Or choices or answers, of a file of your own."""
    path: Paths | None = Field(None, examples=["data/arc"])
    """The task's files; absent: the Hub, or for spelling and counting a list of common words."""
    subset: Name | None = Field(None, examples=["ARC-Easy"])
    """Which subset of the task."""
    tokens: Count | None = Field(None, examples=["4Ki"])
    """With task = "needle": the most tokens of a question."""
    columns: Columns | None = Field(None, examples=[{"question": "prompt"}])
    """With task = "choices" or "answers": the names that question, choices and answer have in the file."""

    @property
    def name(self) -> str:
        """What its score is called: `spelling`, `arc ARC-Challenge`, `needle 4,096`, `quiz.jsonl`."""
        if self.task in FILES and self.path is not None:
            return PurePath(self.path[0]).name
        length = None if self.tokens is None else f"{self.tokens:,}"
        return " ".join(filter(None, (self.task, self.subset, length)))


class Evaluate(Table):
    """Validation, scores and texts: when, on what, how much."""

    every: Count | None = Field(None, examples=[500])
    """Steps between evaluations, with one after the last step; absent: only where a stage has evaluate = true."""
    at_start: bool = False
    """Evaluate before the first step too."""
    sources: Names | None = Field(None, examples=[["web"]])
    """Evaluate on the held-out documents of these sources; absent: of every source that holds some out."""
    mixture: Shares | None = Field(None, examples=[{"web": 1.0}])
    """Evaluate on this mixture, by share, instead; absent: on the same number of rows from each source."""
    tokens: Count = Field(1_000_000, examples=["1M"])
    """Tokens of one evaluation."""
    seq_len: Count | None = Field(None, examples=[2048])
    """Row length of evaluations, in every stage; absent: the first stage's."""
    weights: Literal["average", "both"] | None = None
    """Evaluate and score the average in stages that keep one, or both; absent: the weights themselves."""
    tasks: Annotated[
        tuple[Annotated[AskedTask, short_form("task", Name | AskedTask)], ...],
        Field(strict=False, examples=[["spelling", "counting"]]),
    ] = ()
    """Tasks that are scored, by name or as tables with task, path and so on, where a stage has evaluate = true."""
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
        tuple[Literal["tensorboard", "wandb", "trackio", "mlflow"], ...],
        Field(strict=False, examples=[["tensorboard"]]),
    ] = ()
    """The experiment trackers that get the figures: tensorboard, wandb, trackio, mlflow."""
    project: Name | None = Field(None, examples=["base-models"])
    """The project of wandb and trackio, MLflow's experiment; absent: trivium, and of wandb WANDB_PROJECT."""
    every: Count = Field(1, examples=[10])
    """Steps between lines in the terminal, and between the steps that trackers get."""


class Config(Table):
    """A run's config: what the model reads, and when."""

    run: Run = Run.model_construct()
    """The run's name, folder and seed."""
    model: Model = Model.model_construct()
    """The decoder."""
    tokenizer: Tokenizer | None = None
    """Text to tokens; absent: the token files' own, or bytes."""
    optimizer: Optimizer = Optimizer.model_construct()
    """AdamW, AdEMAMix, Muon with AdamW, or one of an installed package."""
    schedule: Schedule = Schedule.model_construct()
    """The learning rate over the run."""
    engine: Engine = Engine.model_construct()
    """torch or jax, and how they run."""
    loader: LoaderSettings = LoaderSettings.model_construct()
    """How batches get to the engine."""
    checkpoint: Checkpoint = Checkpoint.model_construct()
    """When the run's state is written."""
    guard: Guard = Guard.model_construct()
    """What happens to steps that go wrong."""
    evaluate: Evaluate = Evaluate.model_construct()
    """Validation."""
    track: Track = Track.model_construct()
    """TensorBoard and wandb."""
    defaults: StageDefaults = StageDefaults.model_construct()
    """Values of keys that a stage does not have."""
    sources: Annotated[Mapping[str, Source], frozen_dict] = Field(default_factory=FrozenDict)
    """Named collections of documents."""
    stages: Annotated[tuple[Stage, ...], Field(strict=False)] = ()
    """The stages, in order."""

    def views_of(self, name: str) -> dict[str, ViewSource]:
        """The views of a source's documents, by name."""
        views = {each: source for each, source in self.sources.items() if isinstance(source, ViewSource)}
        return {each: view for each, view in views.items() if view.of == name}


# Keys that must be written. The models leave them open, so that a missing one is one problem among all.
REQUIRED = {
    "Run": ["name"],
    "Stage": ["name"],
    "Anneal": ["start"],
    "Kl": ["beta"],
    "LrPoint": ["lr"],
    "Cycle": ["steps", "decay"],
    "Extend": ["at", "to"],
    "TokensSource": ["kind", "path"],
    "TextSource": ["kind", "path"],
    "HuggingFaceSource": ["kind", "dataset"],
    "StreamSource": ["kind", "dataset"],
    "ChatSource": ["kind"],
    "ViewSource": ["from"],
    "MixedTask": ["task"],
}


def config_schema() -> dict[str, Any]:
    """Draft 2020-12, every key with its doc line."""
    schema = Config.model_json_schema(mode="validation")
    for name, keys in REQUIRED.items():
        schema["$defs"][name]["required"] = keys
    tables = {table.__name__: table for table in all_tables()}
    for name, written in ((Config.__name__, schema), *schema["$defs"].items()):
        for key, line in doc_lines(tables[name]).items():
            written["properties"][tables[name].model_fields[key].alias or key]["description"] = line
    schema["required"] = ["run", "model", "sources", "stages"]
    schema["$defs"]["Model"]["properties"]["size"]["enum"] = [*SIZES, None]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A trivium config",
        **{key: value for key, value in schema.items() if key != "title"},
    }

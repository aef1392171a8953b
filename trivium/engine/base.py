"""The only door between training and a framework: what goes in, what comes out.

Arrays cross as NumPy, everything else as the small frozen values below; a stage, a plan and a config never
do. An engine is entered stage by stage and then stepped:

    engine.enter(stage)
    stats = engine.step(batch, plan.settings_at(step))
    engine.save(folder).wait()
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from math import inf, isfinite
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from trivium.engine.average import AverageSettings
from trivium.engine.loss_weight import EQUAL, LossWeights
from trivium.engine.mesh import ONE_RANK, MeshShape, refuse_unshared_rows
from trivium.engine.own import loss_name, name_of
from trivium.errors import UsageError
from trivium.files import FileFacts
from trivium.model.spec import ModelSpec, RopeSpec
from trivium.rows.batch import Batch

Precision = Literal["float32", "bfloat16"]
Float8 = Literal["tensorwise", "rowwise"]
Recompute = Literal["none", "selective", "full"]
ContextMethod = Literal["gather", "ulysses"]
NoDecay = Literal["norms", "biases", "embeddings"]
Direction = Literal["forward", "reverse", "nll_gap"]
REFERENCES = {"kl": "reference_loss", "distill": "teacher_loss"}  # terms, and the figure of each one's cross-entropy


@runtime_checkable
class Transformation(Protocol):
    """An `optax.GradientTransformation`, as far as it is known without optax."""

    init: Callable[..., Any]
    update: Callable[..., Any]


OwnOptimizer = Callable[..., Any] | Transformation
"""In torch a class of `torch.optim.Optimizer`, bare or in a `functools.partial`; in JAX an optax transformation of a
dict of parameters by name; in either a function of the named parameters that makes one. The schedule multiplies the
learning rates of a torch optimizer's groups, and a transformation's updates."""
MakeModel = Callable[[ModelSpec], Any]
"""A model's shape -> an `nn.Module` (torch) or `nnx.Module` (JAX) that is called with tokens, positions and documents,
(rows, slots) each, and returns hidden states (rows, slots, width). It has `layers` and `lm_head`: docs/trainer.md."""
TokenLosses = Callable[[Any, Any, "LossBatch"], Any]
"""Hidden states (tokens, width), the lm_head's weight (vocab, width) and a `LossBatch` -> a differentiable loss of each
token, which training minimises and reports instead of cross-entropy; or that and a dict of further figures by token.
Evaluation stays plain cross-entropy."""


@dataclass(frozen=True, slots=True)
class FrozenStates:
    """What the reference of a stage with `kl` makes of the same tokens; nothing goes backward through it."""

    hidden: Any  # (tokens, width)
    lm_head: Any  # (vocab, width)
    beta: Any  # the stage's kl.beta


@dataclass(frozen=True, slots=True)
class LossBatch:
    """What a loss of one's own is given beside hidden states: arrays of the engine's framework, (tokens,) each.

    In JAX they have all slots of a micro-batch, and those that do not count are left out of the sum afterwards.
    """

    targets: Any
    tokens: Any
    positions: Any  # in their document
    documents: Any  # numbers within a row, -1 in padding
    reference: FrozenStates | None = None


@dataclass(frozen=True, slots=True)
class OptimizerSettings:
    """What turns gradients into updates; learning rates, momentum, decay and warm-ups come with each step."""

    name: str = "adamw"  # adamw, muon, ademamix, or PACKAGE:NAME of an installed package
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    no_decay: tuple[NoDecay, ...] = ("norms", "biases", "embeddings")
    grad_clip: float | None = None
    options: tuple[tuple[str, Any], ...] = ()  # keyword arguments of a package's optimizer


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """All that an engine is made from."""

    spec: ModelSpec
    optimizer: OptimizerSettings = OptimizerSettings()
    seed: int = 1234
    device: str | None = None  # absent: found by the engine
    precision: Precision | None = None  # absent: bfloat16 on a GPU, float32 elsewhere
    micro_batch_size: int | None = None  # rows in one pass; absent: all of them
    compile: bool = False
    deterministic: bool | None = None  # absent: True but on GPUs, where it costs time
    recompute: Recompute = "none"  # what the backward pass computes again instead of keeping it
    reshard_after_forward: bool | None = None  # of gathered weights; absent: of layers alone. JAX decides by itself
    float8: Float8 | None = None  # what has a scale of its own, where layers multiply in float8
    token_bytes: NDArray[np.integer] | None = None  # bytes of text in each token, for bits per byte
    mesh: MeshShape = ONE_RANK  # how the ranks of this launch share the model
    context_method: ContextMethod = "gather"  # what ranks that share rows send each other
    own_optimizer: OwnOptimizer | None = None  # makes the updates instead; `optimizer.grad_clip` still applies
    make_model: MakeModel | None = None  # makes the model instead of the decoder; `spec.own` is its name
    token_losses: TokenLosses | None = None  # takes the place of cross-entropy in training
    draw: bool = True  # False: weights have no values until `draw`, `load` or `start_from` gives them

    def __post_init__(self) -> None:
        own = None if self.make_model is None else name_of(self.make_model)
        object.__setattr__(self, "spec", replace(self.spec, own=own))


@dataclass(frozen=True, slots=True)
class KlSettings:
    """A term of the objective that is measured to a frozen reference model: a penalty for leaving it, or a teacher."""

    beta: float
    reference: Path  # what `save` wrote, or a Hugging Face folder
    direction: Direction = "forward"
    precision: Precision | None = None  # in which the reference is held; absent: the engine's
    temperature: float = 1.0  # of both models, in forward KL, which is then times its square
    top_k: int | None = None  # forward KL is over the reference's most likely tokens and one class of all others
    spec: ModelSpec | None = None  # the reference's shape; absent: the trained model's


@dataclass(frozen=True, slots=True)
class StageSettings:
    """What changes from stage to stage inside an engine."""

    seq_len: int
    rope: RopeSpec | None = None  # absent: the model's
    document_mask: bool = True
    z_loss: float | None = None
    loss_weight: LossWeights = EQUAL  # of all terms of a token's loss, by its source
    kl: KlSettings | None = None  # beside the cross-entropy; absent: no reference is held or run
    distill: KlSettings | None = None  # in place of its beta of the cross-entropy
    freeze: tuple[str, ...] = ()  # parts of the decoder that no update changes (`model/parts.py`)
    vocab: int | None = None  # tokens that the model knows; more than it has: rows are added. Absent: as many as it has
    reset_optimizer: bool = False  # only where the stage begins: False where a run resumes in its middle
    recompute: Recompute | None = None  # absent: the engine's, as all below
    micro_batch_size: int | None = None
    context: int | None = None  # devices that share each row's slots
    precision: Precision | None = None
    optimizer: OptimizerSettings | None = None  # one of another name starts with a fresh state
    token_losses: TokenLosses | None = None  # takes the place of cross-entropy in training
    average: AverageSettings | None = None  # absent: none is kept
    # The next two only where the stage begins, as `reset_optimizer`; the weights are changed first.
    begin_average: bool = False  # the average begins here; one that was kept until now ends
    start_from: AverageSettings | None = None  # the weights become the average that was kept until now, made like this

    def resolved(self, settings: EngineSettings) -> "StageSettings":
        """The same with what the stage leaves to the engine's settings."""
        return replace(
            self,
            recompute=self.recompute or settings.recompute,
            micro_batch_size=self.micro_batch_size or settings.micro_batch_size,
            context=self.context or settings.mesh.context,
            precision=self.precision or settings.precision,
            optimizer=self.optimizer or settings.optimizer,
            token_losses=self.token_losses or settings.token_losses,
        )

    @property
    def references(self) -> dict[str, KlSettings]:
        """The terms that need a reference, by their names."""
        return {name: term for name in REFERENCES if (term := getattr(self, name)) is not None}

    @property
    def cross_entropy(self) -> float:
        """What the cross-entropy is multiplied by in the objective."""
        return 1.0 if self.distill is None else 1 - self.distill.beta

    def extra(self, loss: float, terms: Mapping[str, float]) -> dict[str, float]:
        """What the objective has beside the plain loss, and their weighted sum; nothing where it has nothing.

        The loss and all terms are means over loss tokens, by the weights that the stage gives to sources. Terms are z
        (the squared log of the softmax's sum), of each reference its term by name and `NAME_nats`, and balance_loss, of
        experts.
        """
        extra, objective = {"weighted_loss": loss} if self.loss_weight else {}, self.cross_entropy * loss
        if self.z_loss is not None:
            extra["z_loss"] = self.z_loss * terms["z"]
            objective += extra["z_loss"]
        for name, term in self.references.items():
            extra |= {name: terms[name], REFERENCES[name]: terms[f"{name}_nats"]}
            objective += term.beta * terms[name]
        if "balance_loss" in terms:
            extra["balance_loss"] = terms["balance_loss"]
            objective += extra["balance_loss"]
        return {**extra, "objective": objective} if extra else {}


@dataclass(frozen=True, slots=True)
class StepSettings:
    """What one step is taken with."""

    step: int
    stage: int
    seq_len: int
    batch_size: int
    tokens_before: int
    lr_multiplier: float
    lr: Mapping[str, float]
    momentum: float
    weight_decay: float
    alpha: float = 0.0  # AdEMAMix's weight of the slow average
    beta3: float = 0.0  # and its decay rate
    loss_limit: float = inf  # above it, or where anything is not finite, no update is made
    norm_limit: float = inf  # as the loss's, of the gradient's norm
    flags: Callable[[], Sequence[bool]] | None = None  # asked once in the step, for `StepStats.raised`


@dataclass(frozen=True, slots=True)
class StepStats:
    """What one update did; sums and counts are over the tokens that count in the loss, by the source's name."""

    loss: float  # mean plain cross-entropy in nats; 0 where no token counts
    loss_tokens: int
    grad_norm: float  # before clipping
    nats_by_source: Mapping[str, float]
    loss_tokens_by_source: Mapping[str, int]
    extra: Mapping[str, float] = field(default_factory=dict)  # further terms of an objective, means over tokens:
    # weighted_loss (the cross-entropy by the stage's loss_weight, by which all of these are means); z_loss; kl (before
    # its weight) and reference_loss (the reference's cross-entropy); distill and teacher_loss, alike; balance_loss (of
    # experts); and objective
    skipped: str | None = None  # why no update was made, where none was
    together: float = 0.0  # seconds from the passes to the figures, where ranks wait for each other; 0 of one alone
    raised: tuple[bool, ...] | None = None  # for each flag, whether any rank raised it; None where none were exchanged
    compilations: int = field(default=0, compare=False)  # made for this step, by an engine that compiles whole steps
    notice: str | None = field(default=None, compare=False)  # something a user should know
    # Of every row of all ranks, in their order: the mean over its loss tokens; 0 where none counts.
    loss_by_row: NDArray[np.float32] | None = field(default=None, compare=False)

    @staticmethod
    def why_skipped(loss: float, grad_norm: float, loss_limit: float, norm_limit: float = inf) -> str | None:
        """Why an update must not be made; None where it may."""
        if not isfinite(loss) or not isfinite(grad_norm):
            return f"the loss is {loss:g} and the gradient's norm {grad_norm:g}"
        if loss > loss_limit:
            return f"the loss is {loss:.4f}, over the limit of {loss_limit:.4f}"
        return None if grad_norm <= norm_limit else f"the gradient's norm is {grad_norm:.4g}, over {norm_limit:.4g}"


@dataclass(frozen=True, slots=True)
class SourceFigures:
    """Summed loss and what it was summed over; the last two are None where no token's bytes are known."""

    nats: float
    tokens: int
    bytes: int | None
    text_nats: float | None  # of the tokens that have bytes: special tokens have none, and no part in bits per byte


# Where ranges of positions begin: how much of its document a token sees decides how well it is predicted.
POSITIONS = (0, *(2**power for power in range(6, 21)))


@dataclass(frozen=True, slots=True)
class EvalStats:
    """A batch's figures by source, evaluated without an update; add them up over batches."""

    by_source: Mapping[str, SourceFigures]
    # Nats and tokens of each range of positions in a document, (len(POSITIONS), 2).
    by_position: NDArray[np.float64] = field(default_factory=lambda: np.zeros((len(POSITIONS), 2)), compare=False)

    @property
    def nats(self) -> float:
        """Summed over all sources."""
        return sum(figures.nats for figures in self.by_source.values())

    @property
    def tokens(self) -> int:
        """Tokens of all sources that count in the loss."""
        return sum(figures.tokens for figures in self.by_source.values())

    @property
    def bytes(self) -> int | None:
        """Bytes of text in them; None where they are not known."""
        known = [figures.bytes for figures in self.by_source.values() if figures.bytes is not None]
        return sum(known) if len(known) == len(self.by_source) else None

    @property
    def text_nats(self) -> float | None:
        """Of the tokens that have bytes; None where these are not known."""
        known = [figures.text_nats for figures in self.by_source.values() if figures.text_nats is not None]
        return sum(known) if len(known) == len(self.by_source) else None


@dataclass(frozen=True, slots=True)
class SaveHandle:
    """A save under way in a thread."""

    future: "Future[dict[str, FileFacts]]"

    def done(self) -> bool:
        """Whether everything is written, or writing has failed."""
        return self.future.done()

    def wait(self) -> dict[str, FileFacts]:
        """Return when all ranks have written, with files whose size and hash are known; raise what went wrong."""
        return self.future.result()


class Generation(Protocol):
    """Rows that grow, token by token; their keys and values are kept.

    On many ranks `append` is one forward pass of all of them, with zero rows too: a rank whose rows have all ended
    continues with `select([])` and `append([])` as long as any other appends. Ranks agree on that (`ranks.agree`).
    """

    def logits(self) -> NDArray[np.float32]:
        """For each row's next token: (rows, vocab). No pass; the array is the caller's."""

    def append(self, tokens: NDArray[np.integer]) -> None:
        """One more token for each row, in one pass."""

    def select(self, rows: NDArray[np.integer]) -> None:
        """Continue with these rows in this order: a row given several times becomes several rows, one not given ends.

        No pass.
        """


class Engine(Protocol):
    """Owner of arrays and devices."""

    def enter(self, stage: StageSettings) -> None:
        """Take over a stage's row length, rotary positions, documents and objective."""

    def step(self, batch: Batch, now: StepSettings) -> StepStats:
        """One update from one batch, of which a rank is given its shard; micro-batches do not change it."""

    def add_to_average(self) -> None:
        """Copy the weights, where the stage's average is of the last copies; of no effect on any other."""

    @property
    def has_average(self) -> bool:
        """Whether there is an average: one of the last copies has none before the first of them."""

    def averaged(self) -> AbstractContextManager[None]:
        """Inside, the weights are the average: to evaluate, ask and export. After it, what they were to the bit."""

    def evaluate(self, batch: Batch) -> EvalStats:
        """Plain cross-entropy of a batch; no update is made. On many ranks: of all their shards, equal in rows."""

    def nats(self, batch: Batch) -> NDArray[np.float32]:
        """Plain loss of every target, (rows, seq_len), 0 where a token does not count.

        On many ranks: of a rank's own shard, all of them passing together, with equal numbers of rows.
        """

    def generation(self, prompts: Sequence[NDArray[np.integer]], room: int) -> Generation:
        """Rows that begin with these prompts, of any lengths, and have `room` for this many more tokens each.

        One pass, on many ranks of all of them; a rank may have no prompts. Until the weights change.
        """

    def save(self, folder: Path, *, background: bool = True) -> SaveHandle:
        """Write weights, average, optimizer and random state; returns when training may continue.

        Wait to know it is whole.
        """

    def draw(self) -> None:
        """Fill the weights with the seed's first values, with a fresh optimizer."""

    def load(self, folder: Path, optimizer: OptimizerSettings | None = None) -> None:
        """Continue from what `save` wrote, exact to the bit; `optimizer` made that state, where not the present one.

        The vocabulary is the saved one, which may have grown since the run began, or may yet grow.
        """

    def start_from(self, folder: Path, average: AverageSettings | None = None) -> None:
        """Take the weights alone, of what `save` wrote or of a Hugging Face folder, with a fresh optimizer.

        With `average`, which says how it was made: of what `save` wrote the average in their place. Weights of a
        smaller vocabulary are given new rows, the mean of their own.
        """

    def computes_in(self) -> dict[str, str]:
        """The `device` by its name and the `precision`, also where the settings have neither."""

    def peak_flops(self) -> float | None:
        """The device's FLOP/s at its best; None where that is not known, as of a CPU."""

    def profiled(self, folder: Path) -> AbstractContextManager[None]:
        """Inside, what processor and device do is traced into files in a folder."""

    def export(self, folder: Path) -> None:
        """Write the weights in Hugging Face form, with the rotary positions that they were last trained with."""


def refuse_misfits(settings: EngineSettings, stage: StageSettings) -> None:
    """A stage cannot have what a model or a loss of the user's own would pass over in silence."""
    if settings.make_model is not None and stage.rope not in (None, settings.spec.rope):
        what = f"the stage has other rotary positions than the model, but {settings.spec.made_by} makes the model"
        raise UsageError(f"{what}, which does not see them. Leave out the stage's rope.")
    is_given = {"distill": stage.distill is not None, "freeze": bool(stage.freeze)}
    is_given["vocab"] = stage.vocab not in (None, settings.spec.vocab)
    for key, given in is_given.items():
        if settings.make_model is not None and given:
            what = f"the stage has {key}, but {settings.spec.made_by} makes the model, and this is for the decoder"
            raise UsageError(f"{what}. Leave it out.")
    shape = settings.mesh.with_context(stage.context or settings.mesh.context)
    assert shape.size == settings.mesh.size, "a stage's context divides the ranks of shard x context"
    refuse_unshared_rows(shape, settings.spec, settings.context_method == "ulysses")
    loss = stage.token_losses or settings.token_losses
    if loss is None:
        return
    if settings.spec.logit_softcap is not None:
        what = f"the model caps its logits (logit_softcap = {settings.spec.logit_softcap:g})"
        raise UsageError(f"{what}, but {loss_name(loss)} makes logits itself, and would not. Leave one of them out.")
    terms = {"z_loss": stage.z_loss is not None, "loss_weight": bool(stage.loss_weight)}
    terms["distill"] = stage.distill is not None
    for key in [key for key, is_asked in terms.items() if is_asked]:
        raise UsageError(f"{loss_name(loss)} is the whole objective, but the stage has {key}. Leave it out.")
    if stage.kl is not None and stage.kl.direction != "forward":
        what = f'{loss_name(loss)} is the whole objective, but the stage has kl.direction = "{stage.kl.direction}"'
        raise UsageError(f"{what}. Leave direction out: kl gives the loss its reference and beta.")


def refuse_too_long(prompts: Sequence[NDArray[np.integer]], room: int, max_seq_len: int) -> None:
    """Rows of a generation may become as long as those the model was trained on, and begin with a token."""
    assert all(len(prompt) for prompt in prompts), "a prompt has a token"
    longest = max((len(prompt) for prompt in prompts), default=0)
    if longest + room > max_seq_len:
        fits = max_seq_len - longest
        instead = f"Ask for {fits:,} or fewer, or shorten it" if fits > 0 else "Shorten it"
        raise UsageError(
            f"the prompt of {longest:,} token{'' if longest == 1 else 's'} and {room:,} more are {longest + room:,}, "
            f"and the model reads {max_seq_len:,}. {instead}."
        )

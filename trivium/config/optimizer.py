"""`[optimizer]`, and the optimizer of each stage: one table for both, of which a stage writes the keys that differ.

    a stage with no optimizer table       has the optimizer of the run so far
    a table without a name                changes its keys for this stage alone
    a table with a name                   takes the place of `[optimizer]` from this stage on; keys that it leaves out
                                          are `[optimizer]`'s

An optimizer's state is kept from stage to stage and belongs to one name: under another name it starts fresh. So a
stage that says nothing never loses it, and going back to an earlier optimizer has to be written.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from trivium.config.fields import (
    BelowOne,
    Betas,
    FrozenDict,
    Name,
    NotNegative,
    Positive,
    Table,
    frozen_dict,
    short_form,
)
from trivium.config.numbers import Count, Whole

if TYPE_CHECKING:
    from trivium.config.stages import Stage

Plain = bool | int | float | str
BUILT_IN = ("adamw", "muon", "ademamix")
# Keys that only some optimizers have.
KEYS_OF = {
    "betas": BUILT_IN,
    "eps": BUILT_IN,
    "momentum": ("muon",),
    "alpha": ("ademamix",),
    "beta3": ("ademamix",),
    "alpha_warmup": ("ademamix",),
    "beta3_warmup": ("ademamix",),
}


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


class Skip(Table):
    """Which updates are skipped: those of steps far above the last ones, in loss or in the gradient's norm."""

    deviations: Positive = Field(6.0, examples=[6.0])
    """Skip a step whose loss or gradient norm is this many standard deviations above the mean of the last steps."""
    steps: Annotated[Count, Field(ge=4, le=10_000)] = Field(128, examples=[128])
    """How many steps the mean is over, skipped ones too; a stage is judged once it has taken half of them."""


class Optimizer(Table):
    """What turns gradients into updates."""

    name: Name = Field("adamw", examples=["adamw"])
    """adamw, ademamix, muon (adamw for all but the layers' matrices), or PACKAGE:NAME of an installed package."""
    lr: Annotated[GroupLr, short_form("rest", Positive | GroupLr)] = Field(
        GroupLr.model_construct(rest=3e-4), examples=[3e-4]
    )
    """The peak learning rate: one number, or { matrix, embedding, unembedding, rest }."""
    lr_scaling: Literal["width"] | None = None
    """width: multiply the rates of embedding and unembedding by (width / 768) ** -0.5; absent: rates as given."""
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
    momentum: Momentum = Field(Momentum.model_construct(), examples=[{"start": 0.85, "end": 0.95, "steps": 300}])
    """Muon's momentum and its warm-up."""
    alpha: Positive = Field(8.0, examples=[8.0])
    """With ademamix: the weight of the slow average of gradients beside the fast one."""
    beta3: BelowOne = Field(0.9999, examples=[0.9999])
    """With ademamix: the decay rate of the slow average."""
    alpha_warmup: Count | None = Field(None, examples=[100_000])
    """With ademamix: steps in which alpha rises from 0, counted from the optimizer's start or reset; absent: none."""
    beta3_warmup: Count | None = Field(None, examples=[100_000])
    """With ademamix: steps in which beta3 rises from the first of betas, its half-life evenly; absent: none."""
    grad_clip: Positive | None = Field(None, examples=[1.0])
    """Clip the norm of the gradient to this; absent: no clipping."""
    skip: Skip | None = Field(None, examples=[{"deviations": 6.0, "steps": 128}])
    """Skip the updates of steps that stand out, as OLMo's SkipStep does; absent: only those that are not finite."""
    options: Annotated[Mapping[str, Plain | list[Plain]], frozen_dict] = Field(
        default_factory=FrozenDict, examples=[{"rho": 0.04}]
    )
    """With an optimizer of an installed package: its own keyword arguments."""

    def has(self, key: str) -> bool:
        """Whether this optimizer's updates depend on a key."""
        if key == "options":
            return ":" in self.name
        return key not in KEYS_OF or self.name in KEYS_OF[key]


@dataclass(frozen=True, slots=True)
class StageOptimizer:
    """A stage's optimizer, every key resolved."""

    settings: Optimizer
    is_fresh: bool  # its state is new at the stage's first step
    began: int  # the stage at whose start its state began

    def changes_from(self, other: "StageOptimizer") -> dict[str, tuple[object, object]]:
        """Keys in which it differs from another, with both values."""
        both = {key: (getattr(other.settings, key), getattr(self.settings, key)) for key in Optimizer.model_fields}
        return {key: values for key, values in both.items() if values[0] != values[1]}


def stage_optimizers(run: Optimizer, stages: "Sequence[Stage]") -> tuple[StageOptimizer, ...]:
    """The optimizer of every stage; `stages` have `[defaults]` merged into them."""
    resolved = _resolved(run, stages)
    is_fresh = [stages[0].reset_optimizer if stages else False]
    is_fresh += [
        stage.reset_optimizer or after.name != before.name
        for stage, (before, after) in zip(stages[1:], pairwise(resolved), strict=True)
    ]
    began = 0
    found = []
    for index, settings in enumerate(resolved):
        began = index if is_fresh[index] else began
        found.append(StageOptimizer(settings, is_fresh[index], began))
    return tuple(found)


def _resolved(run: Optimizer, stages: "Sequence[Stage]") -> list[Optimizer]:
    found = []
    last_named = run
    for stage in stages:
        own = stage.optimizer
        written = {} if own is None else {key: getattr(own, key) for key in own.model_fields_set}
        settings = (run if "name" in written else last_named).model_copy(update=written)
        last_named = settings if "name" in written else last_named
        found.append(settings)
    return found

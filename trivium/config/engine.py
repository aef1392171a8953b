"""The table of the engine: which framework, on which devices, and how ranks share the model."""

from typing import Literal

from pydantic import Field

from trivium.config.fields import StepSpan, Table
from trivium.config.numbers import Count
from trivium.config.stages import Precision, Recompute


class Parallel(Table):
    """How ranks share the model, in JAX all of their devices; the product is the number of ranks (or devices)."""

    replicate: Count = Field(1, examples=[1])
    """Copies of the model (hybrid sharding)."""
    shard: Count | None = Field(None, examples=[8])
    """Ranks that share one copy's parameters (FSDP); absent: all ranks that remain."""
    context: Count = Field(1, examples=[1])
    """Ranks that share each row's slots (context parallelism); they share one copy's parameters too."""
    context_method: Literal["gather", "ulysses"] = "gather"
    """What these ranks send each other in attention: gather keys and values, or exchange slots for heads (ulysses)."""
    tensor: Count = Field(1, examples=[1])
    """Ranks that share each weight matrix (tensor parallelism)."""


class Profile(Table):
    """Steps that are traced."""

    steps: StepSpan = Field((10, 13), examples=[[10, 13]])
    """The first traced step, and the first after them that is not."""


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
    recompute: Recompute = "none"
    """What the backward pass computes again instead of keeping it: none, selective (less memory) or full (least)."""
    reshard_after_forward: bool | None = None
    """Let go gathered weights after the forward pass; absent: those of layers only. torch's FSDP alone has it."""
    parallel: Parallel = Field(Parallel.model_construct(), examples=[{"shard": 8}])
    """How ranks share the model."""
    deterministic: bool | None = None
    """Compute the same bits each time, slower on GPUs; absent: true everywhere but on GPUs."""
    float8: Literal["tensorwise", "rowwise"] | None = None
    """Multiply the layers' matrices in float8, with a scale for each matrix or each row; needs the extra float8."""
    profile: Profile | None = Field(None, examples=[{"steps": [10, 13]}])
    """Trace some steps of rank 0 into the run's folder."""

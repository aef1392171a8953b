"""A checked config -> an engine, and its stages -> what crosses the engine's door.

Nothing else turns config into engine settings; a framework is imported only when its engine is made.
"""

from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trivium.config.schema import Config
from trivium.config.stages import Kl, Stage
from trivium.engine.base import Engine, EngineSettings, KlSettings, OptimizerSettings, StageSettings
from trivium.engine.ranks import Ranks, launched_ranks
from trivium.errors import ConfigError, Problem
from trivium.model.folder import read_spec
from trivium.model.spec import ModelSpec, RopeSpec, model_spec, rope_spec

JAX_PACKAGES = ("jax", "flax", "optax", "orbax")


@dataclass(frozen=True, slots=True)
class FrozenModel:
    """A model that stands still: its weights' folder, and the rotary positions it was trained with."""

    folder: Path
    rope: RopeSpec


def make_engine(settings: EngineSettings, name: str = "torch") -> Engine:
    """The named engine; weights are the seed's."""
    if name == "torch":
        from trivium.engine.torch.engine import TorchEngine

        return TorchEngine(settings)
    refuse_missing_jax()
    from trivium.engine.jax.engine import JaxEngine

    return JaxEngine(settings)


def refuse_missing_jax() -> None:
    """The JAX engine comes with an extra of its own."""
    missing = [package for package in JAX_PACKAGES if find_spec(package) is None]
    if missing:
        are = "is" if len(missing) == 1 else "are"
        what = f"is \"jax\", but {', '.join(missing)} {are} not installed. Get the extra: pip install 'trivium[jax]'"
        raise ConfigError([Problem("engine.name", what)])


def join_ranks(engine: str = "torch", device: str | None = None) -> Ranks:
    """The ranks of this launch, as an engine's framework brings them together: by itself a process is the only one."""
    if engine == "jax":
        refuse_missing_jax()
        from trivium.engine.jax.ranks import join as join_jax

        return join_jax(device)
    if launched_ranks() == 1:
        return Ranks()
    from trivium.engine.torch.ranks import join

    return join()


def engine_settings(config: Config, spec: ModelSpec, token_bytes: NDArray[np.integer] | None = None) -> EngineSettings:
    """What `[optimizer]`, `[engine]` and the run's seed say."""
    optimizer, engine = config.optimizer, config.engine
    return EngineSettings(
        spec=spec,
        optimizer=OptimizerSettings(
            optimizer.name, optimizer.betas, optimizer.eps, optimizer.no_decay, optimizer.grad_clip
        ),
        seed=config.run.seed,
        device=engine.device,
        precision=engine.precision,
        micro_batch=engine.micro_batch_size,
        compile=engine.compile,
        deterministic=engine.deterministic,
        recompute_activations=engine.activation_checkpointing,
        token_bytes=token_bytes,
    )


def resolve_spec(config: Config, vocab: int, init: Path | None = None) -> ModelSpec:
    """The shape that `[model]` asks for, or that of the folder it starts from; `vocab` is the tokenizer's."""
    model = config.model
    longest_row = max(stage.seq_len for stage in config.stages)
    if init is None:
        spec = model_spec(model, vocab, longest_row)
    else:
        own = read_spec(init)
        max_seq_len = model.max_seq_len or own.max_seq_len
        spec = replace(own, max_seq_len=max_seq_len, rope=rope_spec(model.rope, own.rope, max_seq_len))
    if spec.vocab < vocab:
        what = f"is {spec.vocab:,}, but the tokenizer has {vocab:,} tokens. Use the model's own tokenizer, or raise it."
        raise ConfigError([Problem("model.vocab", what)])
    return spec


def stage_settings(
    stage: Stage, spec: ModelSpec, *, begins: bool, reference: FrozenModel | None = None
) -> StageSettings:
    """What a stage changes in the engine; `begins` is False where a run resumes in its middle.

    Without a reference the stage's `kl` is left out: enough to evaluate and to export.
    """
    return StageSettings(
        seq_len=stage.seq_len,
        rope=stage_rope(stage, spec),
        documents="masked" if stage.document_mask else "joined",
        z_loss=stage.z_loss,
        kl=None if stage.kl is None or reference is None else _kl_settings(stage.kl, reference),
        reset_optimizer=begins and stage.reset_optimizer,
    )


def _kl_settings(kl: Kl, reference: FrozenModel) -> KlSettings:
    assert kl.beta is not None, "a checked stage has a beta"
    return KlSettings(kl.beta, reference.folder, kl.direction, kl.precision, reference.rope)


def stage_rope(stage: Stage, spec: ModelSpec) -> RopeSpec:
    """The rotary positions that a model is trained with in a stage."""
    return rope_spec(stage.rope, spec.rope, spec.max_seq_len)

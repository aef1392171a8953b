"""What one engine saved -> what another reads: the weights in Hugging Face form, for a fresh optimizer.

A fork from one engine to another starts with such a checkpoint. Each engine reads and writes only its own folders: the
engine that saved is made once more, on the CPU, to export the weights.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trivium.config.schema import Config
from trivium.engine.average import AverageSettings
from trivium.engine.base import Engine, EngineSettings, MakeModel, StageSettings
from trivium.engine.make import make_engine
from trivium.engine.ranks import Ranks
from trivium.errors import UsageError
from trivium.model.folder import is_saved, read_spec, saved_by
from trivium.plan.average import stage_averages
from trivium.plan.inherit import begun_stages
from trivium.plan.make import stage_configs
from trivium.plan.settings import family_model, stage_settings
from trivium.run.folder import Checkpoint, RunFolder


def checkpoint_engine(
    checkpoint: Checkpoint, device: str | None = "cpu", make_model: MakeModel | None = None, *, averaged: bool = False
) -> Engine:
    """An engine with a checkpoint's weights, in the stage that it was last trained in: to export, evaluate or sample.

    A model that a Trainer's own function made is made by that function again, and refused without it. With `averaged`
    the weights are the average that the checkpoint keeps.
    """
    average = checkpoint_average(checkpoint) if averaged else None
    config = Config.model_validate(checkpoint.state()["config"])
    spec = read_spec(checkpoint.engine)
    name = saved_by(checkpoint.engine) if is_saved(checkpoint.engine) else config.engine.name
    make_model = make_model or family_model(config)
    engine = make_engine(EngineSettings(spec, device=device, make_model=make_model, draw=False), name)
    engine.enter(checkpoint_stage(checkpoint))
    engine.start_from(checkpoint.engine, average)
    return engine


def checkpoint_average(checkpoint: Checkpoint) -> AverageSettings:
    """How the average that a checkpoint keeps was made; UsageError where its last stage kept none."""
    stages = begun_stages(checkpoint.state())
    kept = stage_averages(stages)[-1] if stages and is_saved(checkpoint.engine) else None
    if kept is None:
        what = f"{checkpoint.path}: the stage of this checkpoint keeps no average"
        raise UsageError(f"{what}. Leave out --weights average, or give a checkpoint of another stage.")
    return kept.settings


def checkpoint_stage(checkpoint: Checkpoint) -> StageSettings:
    """The settings of the stage that a checkpoint's model was last trained in; its rotary positions are the model's."""
    state = checkpoint.state()
    stages = begun_stages(state) or stage_configs(Config.model_validate(state["config"]))[:1]
    return stage_settings(stages[-1], None, begins=False)


def is_foreign(folder: Path, engine: str) -> bool:
    """Whether another engine saved this folder; every engine reads the Hugging Face form."""
    return is_saved(folder) and saved_by(folder) != engine


def take_weights(new: RunFolder, checkpoint: Checkpoint) -> Checkpoint:
    """Copy a run's checkpoint into another run, its weights in Hugging Face form; whole or not at all."""
    checkpoint.refuse_damaged()
    new.fresh_draft(checkpoint.step)
    checkpoint_engine(checkpoint).export(new.draft_path(checkpoint.step) / "engine")
    return new.commit(checkpoint.step, checkpoint.state(), {})


@contextmanager
def readable_weights(folder: Path, engine: str, scratch: Path, ranks: Ranks) -> Iterator[Path]:
    """The folder; where another engine saved it, an export in `scratch`, until all ranks have read it."""
    if not is_foreign(folder, engine):
        yield folder
        return
    with ranks.as_one():
        if ranks.is_main:
            shutil.rmtree(scratch, ignore_errors=True)
            checkpoint_engine(Checkpoint(int(folder.parent.name.removeprefix("step-")), folder.parent)).export(scratch)
    yield scratch
    ranks.meet()
    if ranks.is_main:
        shutil.rmtree(scratch)

"""A run's checkpoint -> a Hugging Face folder."""

from pathlib import Path

from trivium.config.schema import Config
from trivium.engine.base import EngineSettings
from trivium.engine.folder import read_spec
from trivium.engine.make import make_engine, stage_settings
from trivium.errors import UsageError
from trivium.plan.make import make_plan
from trivium.train.checkpoint import find_checkpoint


def export_checkpoint(run: Path, out: Path, step: int | None = None) -> str:
    """Write the weights of a checkpoint to a new folder; a sentence about it."""
    if out.exists():
        raise UsageError(f"{out}: is there already. Give a folder that does not exist yet.")
    checkpoint = find_checkpoint(run, step)
    state = checkpoint.state()
    config = Config.model_validate(state["config"])
    spec = read_spec(checkpoint.engine)
    engine = make_engine(EngineSettings(spec, device="cpu"), config.engine.name)
    stages = make_plan(config, {}).stages
    engine.enter(stage_settings(stages[min(state["stage"], len(stages) - 1)].said, spec, begins=False))
    engine.start_from(checkpoint.engine)
    engine.export(out)
    return f"{out}: step {checkpoint.step:,} of {run}, {spec.parameters:,} parameters."

"""A run's checkpoint -> a Hugging Face folder."""

from pathlib import Path

from trivium.engine.folder import read_spec
from trivium.errors import UsageError
from trivium.train.convert import standing_engine
from trivium.train.run_folder import find_checkpoint


def export_checkpoint(run: Path, out: Path, step: int | None = None) -> str:
    """Write the weights of a checkpoint to a new folder; a sentence about it."""
    if out.exists():
        raise UsageError(f"{out}: is there already. Give a folder that does not exist yet.")
    checkpoint = find_checkpoint(run, step)
    standing_engine(checkpoint).export(out)
    parameters = read_spec(checkpoint.engine).parameters
    return f"{out}: step {checkpoint.step:,} of {run}, {parameters:,} parameters."

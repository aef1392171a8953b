"""`trivium average`: checkpoints, runs and Hugging Face folders averaged into one model."""

from pathlib import Path
from typing import Annotated

import typer

from trivium.errors import UsageError
from trivium.screen import echo_line


def average(
    models: Annotated[
        list[str], typer.Argument(help="Runs, RUN@STEP, checkpoints, or Hugging Face folders, of one shape.")
    ],
    out: Annotated[Path, typer.Option(help="A folder that does not exist yet.")],
    weights: Annotated[
        str | None, typer.Option(help="How much each counts, such as 0.9,0.1. By default all count alike.")
    ] = None,
) -> None:
    """Average models of one shape into a Hugging Face folder. A run may start from it (model.init)."""
    from trivium.ask.average import average_models

    echo_line(average_models(models, out, None if weights is None else _numbers(weights)))


def _numbers(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(f'--weights: "{text}" is not a list of numbers. Write for example 0.9,0.1.') from None

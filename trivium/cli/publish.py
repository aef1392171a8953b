"""`trivium export` and `push`: a model written for others, and uploaded."""

from pathlib import Path
from typing import Annotated

import typer

from trivium.cli.options import ModelFolder, RunOrCheckpoint, Step, Weights, WhichWeights
from trivium.errors import UsageError
from trivium.publish.gguf_type import SUFFIX, GgufType
from trivium.screen import echo_line


def export(
    run: RunOrCheckpoint,
    out: Annotated[Path, typer.Argument(help="A folder that does not exist yet, or a file that ends with .gguf.")],
    step: Step = None,
    weights: WhichWeights = Weights.OWN,
    gguf_type: Annotated[
        GgufType | None, typer.Option(help="How a .gguf file stores matrices. By default bf16.")
    ] = None,
) -> None:
    """Write a checkpoint as a Hugging Face folder or as GGUF. With tokenizer, chat template and model card."""
    averaged = weights is Weights.AVERAGE
    if out.suffix == SUFFIX:
        from trivium.publish.gguf import export_gguf

        echo_line(export_gguf(run, out, step, gguf_type or GgufType.BF16, averaged=averaged))
        return
    if gguf_type is not None:
        raise UsageError(f"--gguf-type: {out} does not end with {SUFFIX}. Name such a file, or leave the option out.")
    from trivium.ask.export import export_checkpoint
    from trivium.publish.card import model_card

    card = model_card(run, step, averaged=averaged)
    echo_line(export_checkpoint(run, out, step, averaged=averaged, card=card))


def push(
    model: ModelFolder,
    repository: Annotated[str, typer.Argument(help="The repository on the Hub: owner/name.")],
    step: Step = None,
    weights: WhichWeights = Weights.OWN,
    private: Annotated[bool, typer.Option("--private", help="Make a new repository private.")] = False,
) -> None:
    """Upload a model to the Hugging Face Hub. A run's checkpoint is exported first."""
    from trivium.publish.push import push_model

    echo_line(push_model(model, repository, step, averaged=weights is Weights.AVERAGE, private=private))

"""Arguments and options that several commands share, exit codes, and JSON for machines."""

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from trivium.config import DIALECT_NAMES
from trivium.errors import UsageError
from trivium.screen import Detail, echo

INTERRUPTED = 130  # Ctrl-C where nothing needs to be saved

ConfigFile = Annotated[Path, typer.Argument(help="The config: run.toml, or a file of another tool.")]
Overrides = Annotated[
    list[str] | None, typer.Argument(help="Overrides, such as stages.0.tokens=1B or stages.long.seq_len=4096.")
]
Dialect = Annotated[
    str | None,
    typer.Option(
        help="The tool that the config was written for. By default it is recognised by its tables.",
        metavar="|".join(("trivium", *DIALECT_NAMES)),
    ),
]
WorldSize = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Ranks, where another tool's config has a batch size for each. By default the launch's; of a plan 1.",
    ),
]
Verbose = Annotated[
    bool, typer.Option("--verbose", "-v", help="Also name the keys of another tool's config that decide nothing here.")
]


Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print only errors and the end.")]
EveryStep = Annotated[
    bool, typer.Option("--verbose", "-v", help="Also print every step, and what libraries log.", show_default=False)
]


def how_much(quiet: bool, verbose: bool = False) -> Detail:
    """What `-q` and `-v` ask for; both at once is refused."""
    if quiet and verbose:
        raise UsageError("-q and -v: print less, and more. Give one of them.")
    return Detail.QUIET if quiet else Detail.VERBOSE if verbose else Detail.NORMAL


class Weights(StrEnum):
    """Which weights of a checkpoint are used."""

    OWN = "own"
    AVERAGE = "average"


RunOrCheckpoint = Annotated[Path, typer.Argument(help="A run's folder, or one of its checkpoints.")]
ModelFolder = Annotated[Path, typer.Argument(help="A run's folder, one of its checkpoints, or a Hugging Face folder.")]
Step = Annotated[
    int | None, typer.Option(min=0, help="Use the run's checkpoint of this step. By default its last one.")
]
WhichWeights = Annotated[
    Weights, typer.Option("--weights", help="The weights themselves, or the average that the run keeps of them.")
]
TokenizerPath = Annotated[
    str | None, typer.Option("--tokenizer", help="A tokenizer.json, a folder, or bytes. By default the model's own.")
]
BadLines = Annotated[
    float | None, typer.Option(min=0, max=1, help="Fail where more than this fraction of lines holds no document.")
]
Price = Annotated[float | None, typer.Option(min=0, help="The price of a device for an hour.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def print_json(value: object) -> None:
    echo(json.dumps(value, indent=2, ensure_ascii=False))

"""`trivium prove`: the three gates that an engine passes on a machine."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from trivium.cli.options import Dialect, Json, Overrides, print_json
from trivium.screen import echo, terminal

NOT_PROVEN = 1


def prove(
    config: Annotated[
        Path | None, typer.Argument(help="The config: run.toml, or a file of another tool. By default a small model.")
    ] = None,
    overrides: Overrides = None,
    ranks: Annotated[int, typer.Option(min=1, help="The ranks of a launch, all of them on this machine.")] = 2,
    against: Annotated[int, typer.Option(min=1, help="The ranks of the launch that these are compared with.")] = 1,
    steps: Annotated[int | None, typer.Option(min=4, help="Take the first steps only. By default all of them.")] = None,
    json: Json = False,
    dialect: Dialect = None,
) -> None:
    """Launch a config five times, and compare. Bits repeat, ranks change nothing, a killed run ends alike."""
    import tempfile

    from trivium.demo.demo import SMALL, make_demo
    from trivium.prove.gates import Question
    from trivium.prove.show import show_proof

    with tempfile.TemporaryDirectory(prefix="trivium-prove-") as folder:
        if config is None:
            config = make_demo(Path(folder), SMALL, terminal(stderr=True))
        question = Question(config, overrides or (), dialect, ranks, against, steps)
        proof = question.answer(lambda text: echo(text, err=True))
    if json:
        gates = [{**asdict(gate), "passed": gate.passed} for gate in proof.gates]
        print_json({**asdict(proof), "gates": gates, "passed": proof.passed})
    else:
        show_proof(proof, terminal())
    if not proof.passed:
        raise typer.Exit(NOT_PROVEN)

"""A choice whose memory is near the machine's -> the same with smaller passes, by the forecast of the real step.

Arithmetic bounds the memory of every choice. Where that bound is a good part of the machine's, the engine's own step is
measured without a device, which takes seconds.
"""

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from trivium.config.load import load
from trivium.engine.devices import Device
from trivium.errors import TriviumError
from trivium.forecast.forecast import make_forecast
from trivium.forecast.machine import Machine
from trivium.init.choose import Choice
from trivium.init.write import config_text
from trivium.plan.make import make_plan

MEASURED_FROM = 0.2  # of the machine's memory, by arithmetic


def fitted(choice: Choice, out: Path) -> Choice:
    """The choice with passes of as many rows as fit; unchanged where they take little, or cannot be measured."""
    if choice.memory < MEASURED_FROM * choice.machine.memory:
        return choice
    for each in _smaller(choice):
        try:
            if measured(each, out) <= choice.machine.memory:
                return each
        except TriviumError:  # what only informs refuses no folder
            return choice
    return replace(choice, micro_rows=1)


def _smaller(choice: Choice) -> Iterator[Choice]:
    """The choice, then with ever fewer rows in a pass."""
    yield choice
    rows = (choice.micro_rows or choice.rows) // 2
    while rows >= 1:
        yield replace(choice, micro_rows=rows)
        rows //= 2


def measured(choice: Choice, out: Path) -> int:
    """Bytes that the run's largest step takes, and what a device needs beside."""
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "run.toml"
        config.write_text(config_text(choice, out), encoding="utf-8")
        plan = make_plan(load(config, [f"model.vocab={choice.tokenizer.vocab}"]).config)
    machine = Machine(1, Device("this machine", choice.machine.memory, choice.machine.flops))
    return make_forecast(plan, machine, advise=False).tightest.memory

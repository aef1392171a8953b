"""`trivium init`: a folder is looked at, a run is chosen for it, and its config is written."""

from pathlib import Path

from trivium.errors import UsageError
from trivium.init.choose import Choice, choose
from trivium.init.fit import fitted
from trivium.init.look import look
from trivium.init.machine import ThisMachine, this_machine
from trivium.init.write import given_options, refuse_out, run_name, write_config


def init_run(
    folder: Path,
    out: Path,
    *,
    minutes: float | None = None,
    tokenizer: str | None = None,
    machine: ThisMachine | None = None,
) -> Choice:
    """Write the config of a folder, and tell what was chosen; LookError or UsageError where that cannot be."""
    if minutes is not None and not 0 < minutes < 1e6:
        raise UsageError(f"--minutes: is {minutes:g}. Give the minutes that training may take, such as 10.")
    refuse_out(folder, out)
    found = look(folder)
    trained = out.parent / f"{run_name(folder)}-tokenizer"
    choice = choose(found, machine or this_machine(), trained, minutes=minutes, tokenizer=tokenizer)
    choice = fitted(choice, out)
    write_config(choice, out, given_options(minutes, tokenizer))
    return choice

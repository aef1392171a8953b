"""`trivium quickstart`: a folder's config, token files, plan, run and report, one after the other.

Each step is a command of its own, which is printed before it runs. What exists is kept: stopped anywhere, the same
command goes on.
"""

import importlib
import shlex
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from trivium.errors import UsageError
from trivium.init.init import init_run
from trivium.init.show import show_choice
from trivium.init.write import folder_of, given_options, run_name, was_asked_with


@dataclass(frozen=True, slots=True)
class Quickstart:
    """What a quickstart is asked for."""

    folder: Path
    out: Path
    minutes: float | None = None
    tokenizer: str | None = None

    @property
    def run(self) -> Path:
        """The folder of its run."""
        return Path("runs") / run_name(self.folder)


def run_quickstart(asked: Quickstart, console: Console) -> bool:
    """Do all steps; False where the run was stopped before its end."""
    _make_config(asked, console)
    _prepare(asked, console)
    _headline(console, "trivium", "train", str(asked.out))
    importlib.import_module("trivium.engine.torch.engine")
    from trivium.train.trainer import Trainer

    trainer = Trainer(asked.out)
    trainer.run()
    if not trainer.finished:
        console.print("\nStopped, and saved. The same command goes on.")
        return False
    _show_end(asked, console)
    return True


def _make_config(asked: Quickstart, console: Console) -> None:
    """Write the config, unless it was written for this folder before."""
    options = given_options(asked.minutes, asked.tokenizer)
    if asked.out.exists():
        theirs = folder_of(asked.out)
        if theirs is None or Path(theirs) != asked.folder.resolve():
            what = "another hand wrote it" if theirs is None else f"it is the config of {theirs}"
            raise UsageError(f"--out: {asked.out} exists, and {what}. Name another file: --out {asked.run.name}.toml.")
        if options and not was_asked_with(asked.out, options):
            what = f"{asked.out} exists, and was written without these options"
            raise UsageError(f"--minutes, --tokenizer: {what}. Leave them out, or remove it to begin again.")
        console.print(f"{asked.out} exists: kept, with all that was done", highlight=False, markup=False)
        return
    _headline(console, "trivium", "init", str(asked.folder), "--out", str(asked.out), *options)
    choice = init_run(asked.folder, asked.out, minutes=asked.minutes, tokenizer=asked.tokenizer)
    show_choice(choice, asked.out, console)


def _prepare(asked: Quickstart, console: Console) -> None:
    """Tokenise, with the tokenizer first where it is to be trained; then show the plan."""
    from trivium.config.load import load
    from trivium.plan.make import make_plan
    from trivium.plan.show import show_plan
    from trivium.sources.commands import prepare_sources

    loaded = load(asked.out)
    with loaded.places.named():
        _headline(console, "trivium", "prepare", str(asked.out))
        for line in prepare_sources(loaded.config, None, None):
            console.print(line, highlight=False, markup=False, soft_wrap=True)
        _headline(console, "trivium", "plan", str(asked.out))
        show_plan(make_plan(loaded.config), console, loaded)


def _show_end(asked: Quickstart, console: Console) -> None:
    """Write the report, and say what to type next."""
    from trivium.report.compare import compare_runs, show_changes
    from trivium.report.page import write_report

    _headline(console, "trivium", "report", str(asked.run))
    page = write_report([asked.run], asked.run / "report.html")
    with suppress(UsageError):  # of few documents none are held out, and nothing is evaluated
        show_changes(compare_runs([asked.run]), console)
    console.print(f"\nopen    {page.resolve().as_uri()}", soft_wrap=True, highlight=False)
    console.print(f'ask     trivium sample {asked.run} --prompt "Once upon a time"', soft_wrap=True, highlight=False)
    again = shlex.join(["trivium", "train", str(asked.out), "run.name=second"])
    console.print(f"change  {asked.out}, then {again}", soft_wrap=True, highlight=False, markup=False)


def _headline(console: Console, *command: str) -> None:
    console.print(f"\n$ {shlex.join(command)}", style="bold", highlight=False, markup=False, soft_wrap=True)

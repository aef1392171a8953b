"""The demo from its first text to its report; stopped anywhere, the same command resumes it.

Everything is in one folder: files that exist are kept, and the run resumes from its last checkpoint.
"""

import importlib
import json
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path
from string import Template

from rich.console import Console
from rich.progress import Progress

from trivium.demo.texts import sums, write_lines, write_texts
from trivium.errors import UsageError
from trivium.files import draft
from trivium.screen import under_way


@dataclass(frozen=True, slots=True)
class DemoSize:
    """The amounts that a demo reads and trains."""

    library_bytes: int = 5_000_000
    vocab: int = 512  # few, so that words are spelled from tokens seen often
    conversations: int = 6_000
    layers: int = 4
    width: int = 128
    general: int = 180
    long: int = 50
    fade: int = 20
    talk: int = 340
    rows: int = 16
    long_rows: int = 4
    talk_rows: int = 8
    held_out: float = 0.03
    validation: str = "30k"
    evaluate: int = 45
    score: int = 120
    questions: int = 60
    answer_tokens: int = 160


SMALL = DemoSize(
    library_bytes=300_000,
    conversations=400,
    layers=2,
    width=64,
    general=12,
    long=8,
    fade=4,
    talk=12,
    rows=8,
    long_rows=2,
    held_out=0.25,
    validation="4k",
    evaluate=8,
    score=16,
    questions=4,
    answer_tokens=12,
)


def make_demo(folder: Path, size: DemoSize, console: Console) -> Path:
    """Make everything that the demo's run reads, and its config."""
    config = folder / "demo.toml"
    try:
        write_config(config, size)
    except OSError as error:
        raise UsageError(f"--folder: {folder} cannot be created: {error.strerror}. Name another.") from None
    _write_texts(folder / "texts", size, console)
    _train_tokenizer(config, folder / "tokenizer", size, console)
    return config


def run_demo(folder: Path, size: DemoSize, console: Console) -> bool:
    """Make everything from the texts to the page; False where the run was stopped before its end."""
    config = make_demo(folder, size, console)
    with under_way("importing torch"):
        importlib.import_module("trivium.engine.torch.engine")
    from trivium.plan.show import show_plan
    from trivium.train.trainer import Trainer

    _headline(console, f"The plan of {config}: what each stage will read")
    trainer = Trainer(config)
    show_plan(trainer.plan, console, trainer.loaded)
    _headline(console, "Training: general text, longer rows, conversations")
    trainer.run()
    if trainer.finished:
        _show_end(folder, console)
    else:
        console.print("\nStopped, and saved. The same command resumes here.")
    return trainer.finished


def write_config(path: Path, size: DemoSize) -> None:
    """Write the config, unless it exists: it may have been changed. Its paths are absolute."""
    here = json.dumps(path.parent.resolve().as_posix())[1:-1]  # a quote in a folder's name, as TOML has it
    if not path.exists():
        text = (files("trivium.demo") / "demo.toml").read_text(encoding="utf-8")
        with draft(path) as file:
            file.write(Template(text).substitute(asdict(size), folder=here).encode())
    elif f'"{here}/runs"' not in path.read_text(encoding="utf-8"):
        what = "has the paths of another folder, from where it was moved or copied"
        raise UsageError(f"{path}: {what}. Give --folder a new one.")


def _write_texts(folder: Path, size: DemoSize, console: Console) -> None:
    """Code, prose and conversations about sums; the last file is written when the others exist."""
    if (folder / "sums.jsonl").exists():
        return
    _headline(console, "Texts: the code and the prose of Python's own library, and made-up conversations")
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("reading the library", total=None)
        write_texts(folder, size.library_bytes, lambda done, total: progress.update(bar, completed=done, total=total))
    write_lines(folder / "sums.jsonl", sums(size.conversations))
    for path in sorted(folder.glob("*.jsonl")):
        console.print(f"{path}: {path.stat().st_size / 1e6:.1f} MB", highlight=False)


def _train_tokenizer(config: Path, folder: Path, size: DemoSize, console: Console) -> None:
    if not (folder / "tokenizer.json").exists():
        from trivium.text.train_tokenizer import train_on_texts

        _headline(console, f"A tokenizer of {size.vocab:,} tokens, trained on them")
        console.print(str(train_on_texts([str(config)], folder, size.vocab)), highlight=False, soft_wrap=True)


def _show_end(folder: Path, console: Console) -> None:
    """Show what each stage changed, and where the page is."""
    from trivium.report.compare import compare_runs, show_changes
    from trivium.report.page import write_report

    run = folder / "runs" / "demo"
    _headline(console, "What each stage gained and forgot")
    show_changes(compare_runs([run]), console)
    _headline(console, "The report page")
    page = write_report([run], folder / "report.html")
    console.print(f"open {page.resolve().as_uri()}", soft_wrap=True, highlight=False)
    console.print(f"ask  trivium chat {run}", soft_wrap=True, highlight=False)


def _headline(console: Console, text: str) -> None:
    console.print(f"\n== {text}", style="bold", highlight=False, markup=False)

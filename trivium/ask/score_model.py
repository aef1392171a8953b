"""A model in a folder and the names of tasks -> its scores: what `trivium eval` does."""

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from trivium.ask.open import open_model
from trivium.ask.score.examine import Examinee, examine, overall
from trivium.ask.score.questions import open_exams, refuse_unaskable
from trivium.config.keys import nearest
from trivium.config.numbers import parse_count
from trivium.config.schema import AskedTask
from trivium.config.sources import SCORED
from trivium.engine.ranks import Ranks
from trivium.errors import UsageError


def score_model(
    folder: Path,
    tasks: str,
    questions: int,
    answer_tokens: int,
    step: int | None,
    tokenizer: str | None,
    *,
    averaged: bool = False,
) -> dict[str, Any]:
    """The model's name, its score on each task, and the mean of the centred ones."""
    asked = asked_tasks(tasks)
    model = open_model(folder, step, tokenizer, averaged=averaged)
    exams = open_exams(asked, questions, model.tokenizer, "--tasks")
    refuse_unaskable(exams, model.seq_len, "--tasks")
    room = min(answer_tokens, model.seq_len - 1)
    who = Examinee(model.engine, model.tokenizer, model.seq_len, room, Ranks())
    scores = {exam.name: examine(who, exam) for exam in exams}
    figures = {name: score.figures() for name, score in scores.items()}
    return {"model": model.title, "tasks": figures, "centred": overall(scores)}


def asked_tasks(text: str) -> list[AskedTask]:
    """`spelling,arc:ARC-Challenge=data/arc,needle:4Ki` -> the tasks, with subset or tokens, and path."""
    asked = []
    for part in text.split(","):
        name, _, path = part.strip().partition("=")
        task, _, subset = name.partition(":")
        if task not in SCORED:
            raise UsageError(f'--tasks: "{task}" is not a task that can be scored. {nearest(task, SCORED)}')
        detail: dict[str, Any] = {"subset": subset or None}
        if task == "needle":
            detail = {"tokens": _needle_tokens(subset)}
        asked.append(AskedTask(task=task, path=(path,) if path else None, **detail))
    twice = [each.name for number, each in enumerate(asked) if each.name in [one.name for one in asked[:number]]]
    if twice:
        raise UsageError(f'--tasks: "{twice[0]}" is given twice. Give it once.')
    return asked


def _needle_tokens(text: str) -> int:
    try:
        return parse_count(text)
    except ValueError:
        raise UsageError(f'--tasks: needle needs the length of its text, not "{text}". Write needle:4Ki.') from None


def show_scores(scored: dict[str, Any], console: Console) -> None:
    """Print a table: a line for each task, and the mean where there are several."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_edge=False, header_style="dim")
    for number, header in enumerate(("task", "right", "score", "chance", "centred")):
        table.add_column(header, justify="right" if number else "left")
    for name, score in scored["tasks"].items():
        right = f"{score['right']:,} of {score['questions']:,}"
        table.add_row(Text(name), right, *(f"{score[key]:.3f}" for key in ("score", "chance", "centred")))
    if len(scored["tasks"]) > 1:
        table.add_row("mean", "", "", "", f"{scored['centred']:.3f}")
    console.print(Text(scored["model"], style="bold"), table, sep="\n", highlight=False)
    for name, number in scored.get("figures", {}).items():
        console.print(Text(f"{name}: {number:.4g}"), highlight=False)

"""A task's name -> the task."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from trivium.config.keys import nearest
from trivium.config.sources import GENERATED
from trivium.errors import SourceError
from trivium.tasks.hub import Arc, Gsm8k, JsonLinesTask, Mmlu, SmolTalk
from trivium.tasks.rows import TaskRows, hub_rows, local_rows
from trivium.tasks.task import Task
from trivium.tasks.words import Counting, Spelling, WordRows, split_words

KNOWN: tuple[type[Task], ...] = (SmolTalk, Mmlu, Gsm8k, Arc, JsonLinesTask, Spelling, Counting)
TASKS: Mapping[str, type[Task]] = MappingProxyType({each.name: each for each in KNOWN})


def open_task(
    name: str,
    *,
    path: str | Sequence[str] | None = None,
    split: Literal["train", "test"] = "train",
    subset: str | None = None,
    size: int | None = None,
    start: int | None = None,
    stop: int | None = None,
    seed: int = 1234,
) -> Task:
    """A task's conversations `[start, stop)` of a split: from a path, or from the Hub, or made up from words."""
    if name not in TASKS:
        raise SourceError(f'task: "{name}" is not known. {nearest(name, TASKS)}')
    paths = [path] if isinstance(path, str) else list(path or ())
    rows = _rows(TASKS[name], paths, split, subset, size, seed)
    return TASKS[name](rows, range(len(rows))[start:stop])


def _rows(
    task: type[Task], paths: Sequence[str], split: str, subset: str | None, size: int | None, seed: int
) -> TaskRows:
    if subset is not None and subset not in task.subsets:
        what = f'{task.name} has no subset "{subset}"'
        raise SourceError(f"task: {what}. {nearest(subset, task.subsets) if task.subsets else 'Leave it out.'}")
    if task.name in GENERATED:
        words = split_words(Path(paths[0]) if paths else None, split)
        return WordRows(words, task.name, split, size, seed)
    subset, split = task.where(split, subset)
    if paths:
        return local_rows(paths, split, subset)
    if not task.dataset:
        raise SourceError(f'task: {task.name} needs a file. Write path = "data/chat.jsonl".')
    return hub_rows(task.dataset, subset, split)

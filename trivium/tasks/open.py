"""A task's name -> the task."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Literal

import numpy as np

from trivium.config.keys import nearest
from trivium.config.sources import GENERATED
from trivium.errors import SourceError
from trivium.tasks.hub import Arc, Gsm8k, JsonLinesTask, Mmlu, SmolTalk
from trivium.tasks.needle import Needle, NeedleRows, words_in
from trivium.tasks.quiz import Answers, Choices, open_quiz
from trivium.tasks.rows import TaskRows, hub_rows, local_rows
from trivium.tasks.task import Task
from trivium.tasks.words import Counting, Spelling, WordRows, read_words, split_words
from trivium.text.tokenizer import Tokenizer

KNOWN: tuple[type[Task], ...] = (
    SmolTalk,
    Mmlu,
    Gsm8k,
    Arc,
    JsonLinesTask,
    Spelling,
    Counting,
    Choices,
    Answers,
    Needle,
)
ORDER_SEED = 42  # nanochat's, so that `stop` takes the rows that it takes there
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
    split_by: Literal["words", "rows"] = "words",
    columns: Mapping[str, str] | None = None,
    tokens: int | None = None,
    tokenizer: Tokenizer | None = None,
    seed: int = 1234,
) -> Task:
    """A task's conversations `[start, stop)` of a split: from a path, or from the Hub, or made up from words.

    A dataset's rows are shuffled first, as `datasets` shuffles them: some are sorted by subject. A needle's
    questions have at most `tokens` tokens of a tokenizer. Of questions of one's own, `columns` has the names in files.
    """
    if name not in TASKS:
        raise SourceError(f'task: "{name}" is not known. {nearest(name, TASKS)}')
    paths = [path] if isinstance(path, str) else list(path or ())
    task = TASKS[name]
    if subset is not None and subset not in task.subsets:
        what = f'{task.name} has no subset "{subset}"'
        raise SourceError(f"task: {what}. {nearest(subset, task.subsets) if task.subsets else 'Leave it out.'}")
    if task is Needle or task.name in GENERATED:
        file = Path(paths[0]) if paths else None
        words = split_words(file, split) if split_by == "words" else read_words(file)
        drawn = WordRows(words, task.name, split, size, seed)
        made_up: TaskRows = drawn
        if task is Needle:
            if tokens is None or tokenizer is None:
                raise SourceError("task: needle needs tokens and a tokenizer, which decide the length of its text.")
            made_up = NeedleRows(drawn, words_in(tokens, drawn.words, tokenizer))
        return task(made_up, range(len(made_up))[start:stop])
    if task in (Choices, Answers) and paths:
        return open_quiz(task, local_rows(paths, split, subset), columns or {}, start, stop)
    rows = _rows(task, paths, split, subset)
    order = np.random.default_rng(ORDER_SEED).permutation(len(rows)) if task.dataset else range(len(rows))
    return task(rows, order[start:stop])


def _rows(task: type[Task], paths: Sequence[str], split: str, subset: str | None) -> TaskRows:
    subset, split = task.where(split, subset)
    if paths:
        return local_rows(paths, split, subset)
    if not task.dataset:
        raise SourceError(f'task: {task.name} needs a file. Write path = "data/chat.jsonl".')
    return hub_rows(task.dataset, subset, split)

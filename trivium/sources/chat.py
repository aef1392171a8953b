"""Conversations, of files of JSON lines or of tasks: rendered on first use into tokens, with a loss byte for each.

A task whose rows are on the Hub is fetched only where preparing is allowed, as a dataset is. Of several tasks the
conversations are written in one shuffled order, with the number of its task for each.
"""

import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import xxhash

from trivium.config.sources import GENERATED, ChatSource, MixedTask, TaskKeys
from trivium.errors import SourceError
from trivium.prepare.encode import Form, Recipe
from trivium.prepare.shards import FilesWork, LinesWork, Work
from trivium.sources.locate import (
    FetchedNote,
    LocatedSource,
    LocateSettings,
    exists,
    not_fetched,
    not_there,
    prepared_files,
)
from trivium.textfiles.inputs import InputFile, find_inputs
from trivium.textfiles.read import read_raw_lines

LINE_BYTES = 1024  # of a task's conversation, about
TASKS_VERSION = 2  # rises when tasks make other conversations of the same rows: what was prepared before is not used
SELECTING = ("split", "subset", "size", "start", "stop", "split_by")


def locate_chat(name: str, source: ChatSource, settings: LocateSettings) -> LocatedSource:
    """The token files of conversations, rendered on first use."""
    keys: Sequence[TaskKeys] = source.tasks or (source,)
    for each in keys:
        if each.path is not None and not exists(each.path):
            return not_there(each.path)
    if source.tasks is None and source.task is None:
        return _prepared(name, source, _file_work(source, settings), settings)
    tasks = [LazyTask(each, hashing=settings.prepare) for each in keys]
    if not any(task.is_fetched for task in tasks):
        return _prepared(name, source, _task_work(source, tasks), settings)
    if not settings.prepare and settings.lacks_tokenizer:
        return not_fetched(f"task {source.where}")  # it is asked for a tokenizer when it is there
    asked = [task.settings if task.is_fetched else task.content for task in tasks]
    note = FetchedNote([asked if source.tasks else asked[0], settings.tokenizer.fingerprint])
    there = note.followed()
    if there is not None or not settings.prepare:
        return there or not_fetched(f"task {source.where}")
    there = _prepared(name, source, _task_work(source, tasks), settings)
    note.keep(there)
    return there


def _prepared(name: str, source: ChatSource, work: Work, settings: LocateSettings) -> LocatedSource:
    form: Form = "tasks" if source.tasks else "chat"
    return prepared_files(name, source, work, Recipe(form, settings.tokenizer, settings.config), settings)


def _file_work(source: ChatSource, settings: LocateSettings) -> Work:
    """All lines of the files, or those from `start` to `stop`, counted over all of them."""
    assert source.path is not None, "a checked source has a path or a task"
    files = find_inputs(source.path, hashing=settings.prepare)
    for file in files:
        if file.reader != "jsonl":
            raise SourceError(f"{file.path}: holds no conversations: these come as JSONL, one a line.")
    whole = FilesWork(files)
    if source.start is None and source.stop is None:
        return whole

    def lines() -> Iterator[bytes]:
        return itertools.islice(_lines(files), source.start or 0, source.stop)

    content = [whole.content, source.start, source.stop]
    return LinesWork(source.where, content, lambda: whole.total, lines, source.start or 0)


def _lines(files: tuple[InputFile, ...]) -> Iterator[bytes]:
    for file in files:
        for line in read_raw_lines(file.path):
            yield line if line.endswith(b"\n") else line + b"\n"


@dataclass(frozen=True)
class LazyTask:
    """A task of a source, opened only where its conversations have to be read."""

    keys: TaskKeys
    hashing: bool  # files whose hashes are not known are hashed

    @property
    def is_fetched(self) -> bool:
        """Whether its rows come from the Hub."""
        return self.keys.path is None and self.keys.task not in GENERATED

    @property
    def repeat(self) -> int:
        """How often the source has each of its conversations; a source of one task has it once."""
        return self.keys.repeat if isinstance(self.keys, MixedTask) else 1

    @cached_property
    def conversations(self) -> Sequence[Any]:
        """The task itself."""
        from trivium.tasks.open import open_task

        assert self.keys.task is not None, "a checked task has a name"
        return open_task(self.keys.task, **self.keys.model_dump(include={"path", "columns", *SELECTING}))

    @property
    def settings(self) -> list[Any]:
        """What selects its conversations."""
        selected = (getattr(self.keys, key) for key in SELECTING)
        named = [sorted(self.keys.columns.items())] if self.keys.columns else []
        return [TASKS_VERSION, self.keys.task, *selected, *([self.repeat] * (self.repeat > 1)), *named]

    @cached_property
    def content(self) -> list[Any]:
        """Plain values that change with its conversations; those of the Hub are hashed one by one."""
        if self.is_fetched:
            hasher = xxhash.xxh3_128()
            for line in map(_as_line, self.conversations):
                hasher.update(line)
            return [self.settings, str(hasher.hexdigest())]
        files = find_inputs(self.keys.path, hashing=self.hashing) if self.keys.path else ()
        return [self.settings, FilesWork(files).content if files else None]


def _task_work(source: ChatSource, tasks: Sequence[LazyTask]) -> LinesWork:
    """The conversations of a task, or of several in one order; opened only where they have to be prepared."""

    def size() -> int:
        return sum(len(task.conversations) * task.repeat for task in tasks) * LINE_BYTES

    if source.tasks is None:
        (task,) = tasks
        return LinesWork(f"task {source.task}", task.content, size, lambda: map(_as_line, task.conversations))
    return LinesWork("tasks", [task.content for task in tasks], size, lambda: _mixed_lines(tasks))


def _mixed_lines(tasks: Sequence[LazyTask]) -> Iterator[bytes]:
    from trivium.tasks.mixture import TaskMixture

    mixture = TaskMixture([task.conversations for task in tasks], [task.repeat for task in tasks])
    return (_as_line(conversation | {"task": number}) for number, conversation in mixture)


def _as_line(conversation: dict[str, Any]) -> bytes:
    return json.dumps(conversation, ensure_ascii=False).encode() + b"\n"

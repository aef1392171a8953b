"""Conversations, from files of JSON lines or of a task: rendered on first use into tokens, with a loss byte for each.

A task whose rows are on the Hub is fetched only where preparing is allowed, as a dataset is.
"""

import functools
import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import xxhash

from trivium.config.sources import GENERATED, ChatSource
from trivium.errors import SourceError
from trivium.prepare.encode import Recipe
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
TASK_KEYS = ("split", "subset", "size", "start", "stop", "split_by")


def locate_chat(name: str, source: ChatSource, settings: LocateSettings) -> LocatedSource:
    if source.path is not None and not exists(source.path):
        return not_there(source)
    if source.task is None:
        return _prepared(name, source, _file_work(source, settings), settings)
    task = functools.cache(lambda: _open_task(source))
    if source.path is not None or source.task in GENERATED:
        files = find_inputs(source.path, hashing=settings.prepare) if source.path else ()
        hashes = FilesWork(files).content if source.path else None
        return _prepared(name, source, _task_work(source, task, hashes), settings)
    if not settings.prepare and settings.lacks_tokenizer:
        return not_fetched(f"task {source.where}")  # it is asked for a tokenizer when it is there
    note = FetchedNote([_settings(source), settings.tokenizer.fingerprint])
    there = note.followed()
    if there is not None or not settings.prepare:
        return there or not_fetched(f"task {source.where}")
    hasher = xxhash.xxh3_128()
    for line in _as_lines(task()):
        hasher.update(line)
    there = _prepared(name, source, _task_work(source, task, str(hasher.hexdigest())), settings)
    note.keep(there)
    return there


def _prepared(name: str, source: ChatSource, work: Work, settings: LocateSettings) -> LocatedSource:
    return prepared_files(name, source, work, Recipe("chat", settings.tokenizer, settings.config), settings)


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


def _settings(source: ChatSource) -> list[Any]:
    return [TASKS_VERSION, source.task, *(getattr(source, key) for key in TASK_KEYS)]


def _open_task(source: ChatSource) -> Sequence[Any]:
    from trivium.tasks.open import open_task

    assert source.task is not None, "asked only of a source with a task"
    return open_task(source.task, **source.model_dump(include={"path", *TASK_KEYS}))


def _task_work(source: ChatSource, task: Callable[[], Sequence[Any]], content: Any) -> LinesWork:
    """The conversations of a task, which is opened only where they have to be prepared."""
    size, lines = lambda: len(task()) * LINE_BYTES, lambda: _as_lines(task())
    return LinesWork(f"task {source.task}", [_settings(source), content], size, lines)


def _as_lines(task: Sequence[Any]) -> Iterator[bytes]:
    for conversation in task:
        yield json.dumps(conversation, ensure_ascii=False).encode() + b"\n"

"""Conversations, from files of JSON lines or of a task: rendered on first use into tokens, with a loss byte for each.

A task whose rows are on the Hub is fetched only where that is allowed, as a dataset is.
"""

import itertools
import json
from collections.abc import Iterator, Sequence
from typing import Any

import xxhash

from trivium.config.sources import GENERATED, ChatSource
from trivium.errors import SourceError
from trivium.prepare.recipe import FilesWork, LinesWork, Recipe, Work
from trivium.sources.located import Located, Means, Note, exists, prepared_files
from trivium.textfiles.inputs import InputFile, find_inputs
from trivium.textfiles.read import read_raw_lines

LINE_BYTES = 1024  # of a task's conversation, about


def locate(name: str, source: ChatSource, means: Means) -> Located | None:
    """The token files of a source of conversations; None where nothing of it is on disk, or made up."""
    if source.path is not None and not exists(source.path):
        return None
    if source.task is None:
        return _prepared(name, source, _file_work(source), means)
    if source.path is not None or source.task in GENERATED:
        hashes = FilesWork(find_inputs(source.path)).content if source.path else None
        return _prepared(name, source, _task_work(source, _open_task(source), hashes), means)
    if means.said is None and not means.fetch:
        return None  # it is asked for a tokenizer when it is there
    note = Note([_settings(source), means.tokenizer.fingerprint])
    there = note.followed()
    if there is None and means.fetch:
        task = _open_task(source)
        hasher = xxhash.xxh3_128()
        for line in _as_lines(task):
            hasher.update(line)
        there = _prepared(name, source, _task_work(source, task, str(hasher.hexdigest())), means)
        note.keep(there)
    return there


def _prepared(name: str, source: ChatSource, work: Work, means: Means) -> Located:
    return prepared_files(name, source, work, Recipe("chat", means.tokenizer, means.said), means)


def _file_work(source: ChatSource) -> Work:
    """All lines of the files, or those from `start` to `stop`, counted over all of them."""
    assert source.path is not None, "a checked source has a path or a task"
    files = find_inputs(source.path)
    for file in files:
        if file.reader != "jsonl":
            raise SourceError(f"{file.path}: holds no conversations: these come as JSONL, one a line.")
    whole = FilesWork(files)
    if source.start is None and source.stop is None:
        return whole

    def lines() -> Iterator[bytes]:
        return itertools.islice(_lines(files), source.start or 0, source.stop)

    return LinesWork(source.where, [whole.content, source.start, source.stop], whole.total, lines, source.start or 0)


def _lines(files: tuple[InputFile, ...]) -> Iterator[bytes]:
    for file in files:
        for line in read_raw_lines(file.path):
            yield line if line.endswith(b"\n") else line + b"\n"


def _settings(source: ChatSource) -> list[Any]:
    return [source.task, source.split, source.subset, source.size, source.start, source.stop]


def _open_task(source: ChatSource) -> Sequence[Any]:
    from trivium.tasks.open import open_task

    assert source.task is not None, "asked only of a source with a task"
    return open_task(
        source.task,
        path=source.path,
        split=source.split,
        subset=source.subset,
        size=source.size,
        start=source.start,
        stop=source.stop,
    )


def _task_work(source: ChatSource, task: Sequence[Any], content: Any) -> LinesWork:
    name = f"task {source.task}"
    return LinesWork(name, [_settings(source), content], len(task) * LINE_BYTES, lambda: _as_lines(task))


def _as_lines(task: Sequence[Any]) -> Iterator[bytes]:
    for conversation in task:
        yield json.dumps(conversation, ensure_ascii=False).encode() + b"\n"

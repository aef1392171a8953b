"""Conversations, from files of JSON lines: rendered on first use into tokens, with a loss byte for each."""

import itertools
from collections.abc import Iterator

from trivium.config.sources import ChatSource
from trivium.data.inputs import InputFile, find_inputs
from trivium.data.recipe import FilesWork, LinesWork, Recipe, Work
from trivium.data.sources.located import Located, Means, exists, prepared_files
from trivium.data.text import BUFFER_BYTES, open_input, reading
from trivium.errors import SourceError


def locate(name: str, source: ChatSource, means: Means) -> Located | None:
    """The token files of a source of conversations; None where nothing of it is on disk."""
    if source.path is None or not exists(source.path):
        return None
    files = find_inputs(source.path)
    for file in files:
        if file.reader != "jsonl":
            raise SourceError(f"{file.path}: holds no conversations: these come as JSONL, one a line.")
    work: Work = FilesWork(files) if source.start is None and source.stop is None else _some_lines(source, files)
    return prepared_files(name, source, work, Recipe("chat", means.tokenizer, means.said), means)


def _some_lines(source: ChatSource, files: tuple[InputFile, ...]) -> LinesWork:
    """The lines from `start` to `stop`, counted over all files."""
    content = [FilesWork(files).content, source.start, source.stop]

    def lines() -> Iterator[bytes]:
        return itertools.islice(_lines(files), source.start or 0, source.stop)

    return LinesWork(source.where, content, FilesWork(files).total, lines, source.start or 0)


def _lines(files: tuple[InputFile, ...]) -> Iterator[bytes]:
    for file in files:
        with reading(file.path), open(file.path, "rb", buffering=BUFFER_BYTES) as raw:
            for line in open_input(file.path, raw):
                yield line if line.endswith(b"\n") else line + b"\n"

"""What one rank has found out about its sources, as plain values -> the same sources on another; no file is opened.

Whoever opens a source looks for its files, hashes what has no manifest and counts documents. The other ranks of a
launch take all of that over, and open a file when they first read from it.
"""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from trivium.config.sources import BaseSource, ChatSource, HuggingFaceSource, TextSource
from trivium.rows.blocks import FileBlocks
from trivium.rows.lengths import LengthRange
from trivium.sources.open import OpenSource, TaskCount, blocks_of, within
from trivium.sources.origins import DocumentOrigins
from trivium.tokenfiles.open import TokenFileSettings, UnopenedFile


def describe_source(source: OpenSource) -> dict[str, Any]:
    """A source as plain values, some 100 bytes a file."""
    assert isinstance(source.blocks, FileBlocks), "a plan's sources are files"
    files, lengths = source.blocks.files, source.blocks.lengths
    return {
        "files": [[str(file.path), file.name, file.num_tokens, file.num_documents] for file in files],
        "dtype": files[0].dtype.str,
        "settings": asdict(files[0].settings),
        "content": source.content,
        "documents": source.documents,
        "tokens": source.tokens,
        "held_out_tokens": source.held_out_tokens,
        "largest_id": source.largest_id,
        "tasks": [list(task) for task in source.tasks],
        "lengths": [list(lengths.bounds), lengths.first, lengths.end],
        "view_of": source.view_of,
        "prepared": None if source.origins is None else str(source.origins.folder),
    }


def known_source(name: str, config: BaseSource, described: dict[str, Any]) -> OpenSource:
    """The source that was described, none of its files open."""
    dtype, settings = np.dtype(described["dtype"]), TokenFileSettings(**described["settings"])
    files = tuple(
        UnopenedFile(Path(path), inner, dtype, tokens, documents, settings)
        for path, inner, tokens, documents in described["files"]
    )
    train, held_out = blocks_of(name, config, files, described["content"])
    origins = None
    if described["prepared"] is not None:
        assert isinstance(config, TextSource | HuggingFaceSource | ChatSource), "only these are prepared"
        origins = DocumentOrigins(config, Path(described["prepared"]))
    source = OpenSource(
        train,
        described["documents"],
        described["tokens"],
        held_out,
        described["held_out_tokens"],
        validation_only=config.validation_only,
        largest_id=described["largest_id"],
        content=described["content"],
        tasks=_tasks(described),
        origins=origins,
    )
    source = replace(source, loss_on=config.loss_on) if isinstance(config, ChatSource) else source
    return within(source, _lengths(described))


def known_view(source: OpenSource, described: dict[str, Any]) -> OpenSource:
    """The view of a source that was described; both have the same files."""
    counts = {key: described[key] for key in ("documents", "tokens", "held_out_tokens", "view_of")}
    return replace(within(source, _lengths(described)), tasks=_tasks(described), **counts)


def _tasks(described: dict[str, Any]) -> tuple[TaskCount, ...]:
    return tuple(TaskCount(*task) for task in described["tasks"])


def _lengths(described: dict[str, Any]) -> LengthRange:
    bounds, first, end = described["lengths"]
    return LengthRange(tuple(bounds), first, end)

"""An id that the vocabulary does not have -> the error that names its source, file and document.

A manifest tells the largest id of a source, and a plan refuses one that is too large. A file that differs from its
manifest is found when its rows are gathered, before a batch has them.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from trivium.errors import SourceError
from trivium.rows.blocks import Blocks, FileBlocks
from trivium.sources.stream.lane import WindowDocuments


def unknown_in_file(source: str, blocks: Blocks, file: int, offset: int, vocab: int) -> SourceError:
    """The error for a piece of a file that starts at a token, `offset`."""
    assert isinstance(blocks, FileBlocks), "only files hold ids that were not measured"
    document, start = blocks.document_at(file, offset)
    stop, opened = blocks.document_span(document)[2], blocks.opened(file)
    what = _first_unknown(opened.tokens, start, offset, stop, vocab)
    return SourceError(
        f"source {source}: {opened.path}: document {document:,} {what}. The file differs from its manifest: `trivium "
        "verify` names every file that does. Copy or write it again, or delete manifest.json to have it measured."
    )


def unknown_in_stream(source: str, documents: WindowDocuments, offset: int, vocab: int) -> SourceError:
    """The error for a piece of a stream's window that starts at a token, `offset`."""
    where, document, start, stop = documents.document_at(offset)
    what = _first_unknown(documents.tokens, start, offset, stop, vocab)
    return SourceError(f"source {source}: {where}: document {document:,} {what}. Use a tokenizer that fits the model.")


def _first_unknown(tokens: NDArray[Any], start: int, offset: int, stop: int, vocab: int) -> str:
    """Which token of a document is the first unknown one from `offset` on."""
    unknown = np.flatnonzero((tokens[offset:stop] < 0) | (tokens[offset:stop] >= vocab))
    token = offset + int(unknown[0])
    return (
        f"has the token id {int(tokens[token]):,} (its token {token - start:,}), the vocabulary is 0 to {vocab - 1:,}"
    )

"""Token files -> how many tokens and documents they hold, and the tokenizer that they name."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from trivium.errors import SourceError
from trivium.init.found import Estimate, FoundFile
from trivium.tokenfiles.dtypes import TokenMetadata
from trivium.tokenfiles.formats import TokenFileDescription, describe
from trivium.tokenfiles.masked import INDEX, MASK, TOKEN

NO_DTYPE = "a flat file that does not say of which type its tokens are: write dtype into a metadata.json beside it"


@dataclass(frozen=True, slots=True)
class TokenGroup:
    """What token files must share to be one source."""

    format: str
    dtype: str
    tokenizer: str | None


def look_at_tokens(file: FoundFile) -> TokenGroup | str:
    """What a token file is, or why it is passed over; SourceError where it is damaged."""
    beside = [
        file.path.name.removesuffix(ending) + TOKEN for ending in (INDEX, MASK) if file.path.name.endswith(ending)
    ]
    if any((file.path.parent / owner).is_file() for owner in beside):
        return "part of a tokenizer or of token files"
    try:
        found = _described(file)
    except SourceError as error:
        if file.path.suffix == ".npy":
            return "an array that holds no tokens"
        raise error
    metadata = found.metadata
    if metadata is None or metadata.dtype is None:
        return NO_DTYPE
    return TokenGroup(found.format, metadata.dtype, metadata.tokenizer)


def _described(file: FoundFile) -> TokenFileDescription:
    sidecars: dict[Path, TokenMetadata | None] = {}
    return describe(file.path, sidecars)


def estimate_tokens(files: Sequence[FoundFile]) -> Estimate:
    """What the headers and indexes of token files say; a file without an index is one document."""
    tokens = documents = 0
    for file in files:
        found = _described(file)
        assert found.metadata is not None
        assert found.metadata.dtype is not None, "a file without one was passed over"
        itemsize = np.dtype(found.metadata.dtype).itemsize
        tokens += found.count.tokens if found.count is not None else file.size // itemsize
        documents += _documents(found)
    return Estimate(documents, 0, tokens)


def _documents(found: TokenFileDescription) -> int:
    if found.ends is not None:
        return len(found.ends)
    if found.megatron is not None:
        return max(1, len(found.megatron.documents) - 1)
    return found.padded.rows if found.padded is not None else 1

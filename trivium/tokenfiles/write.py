"""Documents' tokens -> a token file as datatrove writes it: .ds, .ds.index, .ds.loss, .ds.metadata.

All are drafts until the last token is written; the `.ds` gets its name last, so that it never exists without the
files beside it.
"""

from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from trivium.files import draft
from trivium.tokenfiles.ends import Tokens

Lengths = NDArray[np.int64]


def dtype_for(vocab: int) -> str:
    """The smallest dtype that datatrove knows and that holds all ids of a vocabulary."""
    return "uint16" if vocab <= 2**16 else "uint32"


class TokenWriter:
    """A token file being written; none of its files exists unless the block ends without an error."""

    def __init__(self, path: Path, dtype: str, tokenizer: str, *, with_loss: bool) -> None:
        self.path = path
        self.num_tokens = 0
        self._dtype: np.dtype[Any] = np.dtype(dtype).newbyteorder("<")
        self._tokenizer = tokenizer
        self._with_loss = with_loss
        self._files = ExitStack()

    def __enter__(self) -> "TokenWriter":
        # Renamed in the opposite order: the .ds last.
        self._tokens = self._draft("")
        self._index = self._draft(".index")
        self._metadata = self._draft(".metadata")
        self._loss = self._draft(".loss") if self._with_loss else None
        return self

    def _draft(self, ending: str) -> BinaryIO:
        # Flushed to disk all together, before the manifest is written.
        return self._files.enter_context(draft(Path(f"{self.path}{ending}"), durable=False))

    def add(self, tokens: Tokens, lengths: Lengths, loss: NDArray[np.uint8] | None = None) -> None:
        """Add documents: their tokens one after the other, and how many each has."""
        self._tokens.write(tokens.astype(self._dtype, copy=False).data)
        self._index.write((self.num_tokens + np.cumsum(lengths)).astype("<u8").data)
        if self._loss is not None:
            assert loss is not None, "a file with loss bytes has one for each token"
            self._loss.write(loss.data)
        self.num_tokens += len(tokens)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        if kind is None:
            lines = f"{self._tokenizer}|{self._dtype.itemsize}\n{self.num_tokens}\n{self.num_tokens:,} tokens"
            self._metadata.write(lines.encode())
        return self._files.__exit__(kind, error, trace)

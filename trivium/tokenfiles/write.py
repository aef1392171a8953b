"""Documents' tokens -> a token file, as datatrove or as Megatron writes it.

datatrove's are .ds, .ds.index, .ds.metadata, with loss bytes .ds.loss, of several tasks .ds.task; Megatron's .bin and
.idx. All are drafts until the last token is written; the token file gets its name last, so that it never exists
without the files beside it.
"""

from abc import ABC, abstractmethod
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Literal

import numpy as np
from numpy.typing import NDArray

from trivium.files import draft
from trivium.tokenfiles.ends import Tokens
from trivium.tokenfiles.formats import MEGATRON_DTYPES, MEGATRON_HEADER, MEGATRON_MAGIC

Lengths = NDArray[np.int64]
Labels = NDArray[np.uint8]
WrittenFormat = Literal["ds", "megatron"]
# The endings of a token file and of the files that may be beside it.
ENDINGS: dict[WrittenFormat, tuple[str, ...]] = {
    "ds": (".ds", ".ds.index", ".ds.loss", ".ds.task", ".ds.metadata"),
    "megatron": (".bin", ".idx"),
}
MEGATRON_UINT16 = 65_500  # Megatron takes int32 for larger vocabularies; it knows no uint32


def dtype_for(vocab: int, written: WrittenFormat = "ds") -> str:
    """The smallest dtype that holds all ids of a vocabulary, of those that the format's other readers know."""
    if written == "megatron":
        return "uint16" if vocab < MEGATRON_UINT16 else "int32"
    return "uint16" if vocab <= 2**16 else "uint32"


class TokenWriter(ABC):
    """A token file being written; none of its files exists unless the block ends without an error."""

    def __init__(self, prefix: Path, dtype: str) -> None:
        self.num_tokens = 0
        self._prefix = prefix
        self._dtype: np.dtype[Any] = np.dtype(dtype).newbyteorder("<")
        self._files = ExitStack()

    def __enter__(self) -> "TokenWriter":
        self._open()
        return self

    def _draft(self, ending: str) -> BinaryIO:
        # Flushed to disk all together, before the manifest is written.
        return self._files.enter_context(draft(Path(f"{self._prefix}{ending}"), durable=False))

    @abstractmethod
    def _open(self) -> None:
        """Open the drafts: renamed in the opposite order, so the token file is the first."""

    @abstractmethod
    def add(self, tokens: Tokens, lengths: Lengths, loss: Labels | None = None, tasks: Labels | None = None) -> None:
        """Add documents: their tokens one after the other, and how many each has."""

    @abstractmethod
    def _finish(self) -> None:
        """Write what is known only at the end."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        if kind is None:
            self._finish()
        return self._files.__exit__(kind, error, trace)


class DsWriter(TokenWriter):
    """datatrove's files; the document ends are written as they come."""

    def __init__(self, prefix: Path, dtype: str, tokenizer: str, *, with_loss: bool, with_tasks: bool) -> None:
        super().__init__(prefix, dtype)
        self._tokenizer = tokenizer
        self._with_loss = with_loss
        self._with_tasks = with_tasks

    def _open(self) -> None:
        self._tokens = self._draft(".ds")
        self._index = self._draft(".ds.index")
        self._metadata = self._draft(".ds.metadata")
        self._loss = self._draft(".ds.loss") if self._with_loss else None
        self._tasks = self._draft(".ds.task") if self._with_tasks else None

    def add(self, tokens: Tokens, lengths: Lengths, loss: Labels | None = None, tasks: Labels | None = None) -> None:
        self._tokens.write(tokens.astype(self._dtype, copy=False).data)
        self._index.write((self.num_tokens + np.cumsum(lengths)).astype("<u8").data)
        if self._loss is not None:
            assert loss is not None, "a file with loss bytes has one for each token"
            self._loss.write(loss.data)
        if self._tasks is not None:
            assert tasks is not None, "a file of several tasks has the number of one for each document"
            self._tasks.write(tasks.data)
        self.num_tokens += len(tokens)

    def _finish(self) -> None:
        lines = f"{self._tokenizer}|{self._dtype.itemsize}\n{self.num_tokens}\n{self.num_tokens:,} tokens"
        self._metadata.write(lines.encode())


class MegatronWriter(TokenWriter):
    """Megatron's files, each document one sequence; the index has counts first, so that it is written at the end."""

    def __init__(self, prefix: Path, dtype: str) -> None:
        super().__init__(prefix, dtype)
        self._lengths: list[Lengths] = []

    def _open(self) -> None:
        self._tokens = self._draft(".bin")
        self._index = self._draft(".idx")

    def add(self, tokens: Tokens, lengths: Lengths, loss: Labels | None = None, tasks: Labels | None = None) -> None:
        assert loss is None, "Megatron's files have no place for loss bytes"
        assert tasks is None, "Megatron's files have no place for tasks"
        self._tokens.write(tokens.astype(self._dtype, copy=False).data)
        self._lengths.append(lengths)
        self.num_tokens += len(tokens)

    def _finish(self) -> None:
        lengths = np.concatenate([np.empty(0, np.int64), *self._lengths])
        code = next(code for code, name in MEGATRON_DTYPES.items() if name == self._dtype.name)
        self._index.write(MEGATRON_HEADER.pack(MEGATRON_MAGIC, 1, code, len(lengths), len(lengths) + 1))
        self._index.write(lengths.astype("<i4").data)
        self._index.write(((np.cumsum(lengths) - lengths) * self._dtype.itemsize).astype("<i8").data)
        self._index.write(np.arange(len(lengths) + 1, dtype="<i8").data)

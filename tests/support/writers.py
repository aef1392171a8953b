"""Plain writers of each token format: documents, as lists of ids, -> files as other tools write them."""

import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from trivium.tokenfiles.open import TokenFile

Documents = Sequence[Sequence[int]]

TEN = [[7, 1, 0], [2, 0], [3, 3, 3, 0], [0], [9, 0], [4, 5, 6, 0], [8, 0], [1, 0], [6, 6, 0], [5, 0]]

MEGATRON_CODES = {"uint8": 1, "int8": 2, "int16": 3, "int32": 4, "int64": 5, "uint16": 8}


def flat(documents: Documents, dtype: str) -> bytes:
    """All tokens, one after the other."""
    return np.array([token for document in documents for token in document], f"<{np.dtype(dtype).str[1:]}").tobytes()


def documents_of(file: TokenFile) -> list[list[int]]:
    """The documents of an open file, as lists of ids."""
    starts = [0, *file.ends[:-1].tolist()]
    return [file.tokens[start:end].tolist() for start, end in zip(starts, file.ends.tolist(), strict=True)]


def write_ds(
    path: Path,
    documents: Documents,
    dtype: str = "uint16",
    tokenizer: str | None = "gpt2",
    loss: Sequence[int] | None = None,
) -> Path:
    """datatrove's form; `tokenizer` None leaves the metadata out."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(flat(documents, dtype))
    ends = np.cumsum([len(document) for document in documents], dtype="<u8")
    Path(f"{path}.index").write_bytes(ends.tobytes())
    if tokenizer is not None:
        num_tokens = sum(map(len, documents))
        size = np.dtype(dtype).itemsize
        Path(f"{path}.metadata").write_text(f"{tokenizer}|{size}\n{num_tokens}\n{num_tokens} T")
    if loss is not None:
        Path(f"{path}.loss").write_bytes(bytes(loss))
    return path


def write_npy(path: Path, documents: Documents, dtype: str = "uint16") -> Path:
    """One array with a header."""
    path.parent.mkdir(parents=True, exist_ok=True)
    np.save(path, np.frombuffer(flat(documents, dtype), dtype))
    return path


def write_bin(path: Path, documents: Documents, dtype: str = "uint16") -> Path:
    """Raw tokens; nothing says of what dtype."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(flat(documents, dtype))
    return path


def write_megatron(
    path: Path,
    documents: Sequence[Documents],
    dtype: str = "uint16",
    version: int = 1,
    magic: bytes = b"MMIDIDX\x00\x00",
    code: int | None = None,
    marks: Sequence[int] | None = None,
) -> Path:
    """Megatron's form, where a document is a list of sequences; `path` is the `.bin`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    sequences = [sequence for document in documents for sequence in document]
    path.write_bytes(flat(sequences, dtype))
    lengths = np.array([len(sequence) for sequence in sequences], "<i4")
    after = np.cumsum(lengths, dtype="<i8") * np.dtype(dtype).itemsize
    before = after - lengths * np.dtype(dtype).itemsize
    if marks is None:
        marks = np.cumsum([0, *map(len, documents)]).tolist()
    path.with_suffix(".idx").write_bytes(
        struct.pack("<9sQB", magic, version, MEGATRON_CODES[dtype] if code is None else code)
        + struct.pack("<QQ", len(sequences), len(marks))
        + lengths.tobytes()
        + before.astype("<i8").tobytes()
        + np.array(marks, "<i8").tobytes()
    )
    return path

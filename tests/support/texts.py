"""Small corpora of text for tests, written in every form that is read."""

import gzip
import json
from collections.abc import Sequence
from pathlib import Path

import zstandard

from trivium.config.schema import Tokenizer as TokenizerConfig
from trivium.prepare.encode import Recipe
from trivium.prepare.folder import Prepared
from trivium.prepare.prepare import prepare
from trivium.prepare.shards import FilesWork
from trivium.text.tokenizer import ByteTokenizer
from trivium.textfiles.inputs import find_inputs
from trivium.tokenfiles.open import open_source
from trivium.tokenfiles.write import WrittenFormat

BYTES = TokenizerConfig(kind="bytes")
EOS = 256
# The beginning of a config of texts: sources and stages follow.
TINY_ON_BYTES = """
[run]
name = "test"
[model]
size = "tiny"
[tokenizer]
kind = "bytes"
"""


def lines_of(texts: Sequence[str]) -> bytes:
    """JSONL with a `text` a line."""
    return b"".join(json.dumps({"text": text, "id": number}).encode() + b"\n" for number, text in enumerate(texts))


def write_lines(path: Path, texts: Sequence[str]) -> Path:
    """A JSONL file, compressed as its name says."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = lines_of(texts)
    if path.suffix == ".gz":
        content = gzip.compress(content, mtime=0)
    if path.suffix == ".zst":
        content = zstandard.ZstdCompressor().compress(content)
    path.write_bytes(content)
    return path


def write_parquet(path: Path, texts: Sequence[str | None], row_group: int = 3) -> Path:
    """A Parquet file with some rows in each group."""
    import pyarrow
    import pyarrow.parquet

    path.parent.mkdir(parents=True, exist_ok=True)
    table = pyarrow.table({"id": list(range(len(texts))), "text": pyarrow.array(texts, pyarrow.string())})
    pyarrow.parquet.write_table(table, path, row_group_size=row_group)
    return path


def prepare_bytes(
    path: Path, out: Path, workers: int | None = 1, most_bad: float = 0.001, written: WrittenFormat = "ds"
) -> Prepared:
    """Prepare with a token for each byte."""
    work = FilesWork(find_inputs([str(path)]))
    recipe = Recipe("text", ByteTokenizer(), BYTES, format=written)
    return prepare(work, recipe, out, title="web", workers=workers, most_bad=most_bad)


def texts_in(folder: Path) -> list[str]:
    """The documents of prepared files as text; each ends with the token for that."""
    texts = []
    for file in open_source(folder):
        starts = [0, *file.ends[:-1].tolist()]
        for start, end in zip(starts, file.ends.tolist(), strict=True):
            assert file.tokens[end - 1] == EOS
            texts.append(bytes(file.tokens[start : end - 1].tolist()).decode())
    return texts


def content_of(folder: Path) -> dict[str, bytes]:
    """Every file of a folder that is not hidden, by name."""
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if not path.name.startswith(".")}

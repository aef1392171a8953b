"""Compressed files: what any writer makes is read, and memory does not grow with what a file expands to."""

import gzip
import io
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import zstandard

from tests.support.texts import prepare_bytes
from trivium.textfiles.decompress import ZstdReader
from trivium.textfiles.read import read_lines, read_parquet, read_text

MIB = 1 << 20
CONTENT = b"".join(b"line %d of some text\n" % (number * number) for number in range(40_000))


@contextmanager
def at_most(size: int) -> Iterator[None]:
    """Python's memory grows by no more than this."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < size
    finally:
        tracemalloc.stop()


def frames() -> dict[str, bytes]:
    """The same content with every kind of header and block."""
    plain: dict[str, Any] = {"write_checksum": False, "write_content_size": False}
    variants: tuple[dict[str, Any], ...] = ({}, plain, {"write_checksum": True})
    made = {
        f"level {level}, {keys}": zstandard.ZstdCompressor(level=level, **keys).compress(CONTENT)
        for level in (-5, 1, 19)
        for keys in variants
    }
    streamed = zstandard.ZstdCompressor(**plain).compressobj()
    made["of unknown size"] = streamed.compress(CONTENT) + streamed.flush()
    half = len(CONTENT) // 2
    halves = [zstandard.ZstdCompressor().compress(part) for part in (CONTENT[:half], b"", CONTENT[half:])]
    made["several frames, with metadata"] = (b"\x52\x2a\x4d\x18\x03\0\0\0abc").join(halves)
    made["blocks of one byte"] = zstandard.ZstdCompressor().compress(b"x" * MIB)
    made["not compressible"] = zstandard.ZstdCompressor().compress(bytes(range(256)) * 3 + CONTENT[:7])
    return made


@pytest.mark.parametrize("kind", frames())
def test_every_kind_of_frame_is_read(kind: str) -> None:
    content = frames()[kind]
    expected = zstandard.ZstdDecompressor().stream_reader(content, read_across_frames=True).read()
    assert io.BufferedReader(ZstdReader(io.BytesIO(content))).read() == expected
    for cut in (1, 3, len(content) // 2, len(content) - 1):
        with pytest.raises(EOFError):
            io.BufferedReader(ZstdReader(io.BytesIO(content[:cut]))).read()


@pytest.mark.parametrize("ending", ["gz", "zst"])
def test_a_small_file_that_expands_a_thousandfold_takes_little_memory(
    tmp_path: Path, ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trivium.textfiles.read.MOST_BYTES", MIB)
    content = gzip.compress(bytes(100 * MIB), 1) if ending == "gz" else zstandard.compress(bytes(400 * MIB), 1)
    for name in (f"a.jsonl.{ending}", f"a.txt.{ending}"):
        path = tmp_path / name
        path.write_bytes(content)
        with at_most(12 * MIB):
            found = list(read_lines(path, 0, path.stat().st_size) if "jsonl" in name else read_text(path))
        assert [each.bad for each in found] == [[(1, "over 200 MB")]]


def test_a_value_that_every_row_of_parquet_names_is_copied_for_a_few_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pyarrow
    import pyarrow.parquet

    monkeypatch.setattr("trivium.textfiles.read.BATCH_TEXT", 4 * MIB)
    texts = pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * 200, pyarrow.int32()), pyarrow.array(["x" * MIB]))
    for number, column in enumerate((texts, texts.cast(pyarrow.string()))):
        path = tmp_path / f"{number}.parquet"
        pyarrow.parquet.write_table(pyarrow.table({"id": list(range(200)), "text": column}), path)
        assert path.stat().st_size < MIB
        with at_most(16 * MIB):
            assert sum(len(found.records) for found in read_parquet(path, 0, 1, "text")) == 200


def test_a_line_of_very_many_values_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trivium.textfiles.read.MOST_VALUES", 1000)
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "a, b"}\n[' + b"[]," * 1000 + b"[]]\n")
    (found,) = read_lines(tmp_path / "a.jsonl", 0, 10_000)
    assert (len(found.records), found.bad) == (1, [(2, "over 20 million values")])


def test_a_document_over_the_limit_in_a_large_compressed_file_is_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trivium.textfiles.read.MOST_BYTES", 3 * MIB)
    monkeypatch.setattr("trivium.prepare.shards.MOST_BYTES", 3 * MIB)
    lines = [b'{"text": "%s"}\n' % (b"x" * size) for size in (10, 9 * MIB, 20)]
    (tmp_path / "a.jsonl.zst").write_bytes(zstandard.compress(b"".join(lines)) + zstandard.compress(bytes(MIB)))
    prepared = prepare_bytes(tmp_path / "a.jsonl.zst", tmp_path / "out", most_bad=1)
    assert (prepared.manifest.documents, prepared.bad.counts) == (2, {"over 200 MB": 1, "broken JSON": 1})

"""Every document of a prepared source is traced to the file and line that the user wrote it in."""

import gzip
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import zstandard

from tests.support.command_line import trivium
from tests.support.corpus import make_config
from tests.support.texts import TINY_ON_BYTES, write_parquet
from trivium.prepare import shards
from trivium.rows.blocks import FileBlocks
from trivium.sources.open import OpenSource, open_sources
from trivium.text.tokenizer import ByteTokenizer
from trivium.textfiles.read import InputLine

STAGE = {"name": "only", "steps": 1, "seq_len": 64, "batch_size": 2, "mixture": {"web": 1.0}}
BYTES = {"kind": "bytes"}
PADDING = "|" + "x" * 60
CONFIG = f"""{TINY_ON_BYTES}[sources.web]
kind = "text"
path = "data"
validation = 0.5
[[stages]]
name = "only"
epochs = 1
seq_len = 128
batch_size = 1
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Shards of a kilobyte, so that small files are cut too."""
    monkeypatch.setattr(shards, "SMALLEST", 1024)
    monkeypatch.setattr(shards, "WANTED", 1000)
    monkeypatch.chdir(tmp_path)
    Path("data").mkdir()
    return tmp_path


def numbered(name: str, count: int = 60) -> bytes:
    """Lines whose texts say where they are, with blank, broken and empty ones between them."""
    lines = []
    for number in range(1, count + 1):
        text = "" if number % 11 == 0 else f"data/{name} line {number}{PADDING}"
        line = json.dumps({"text": text})
        lines.append("  " if number % 7 == 0 else "{broken" if number % 13 == 0 else line)
    return "\n".join(lines).encode()  # the last line has no end


def write_every_form() -> None:
    """One large and one small file of each form."""
    for count, size in ((60, "large"), (5, "small")):
        Path(f"data/{size}.jsonl").write_bytes(numbered(f"{size}.jsonl", count))
        Path(f"data/{size}.jsonl.gz").write_bytes(gzip.compress(numbered(f"{size}.jsonl.gz", count * 9)))
        packed = zstandard.ZstdCompressor().compress(numbered(f"{size}.jsonl.zst", count * 9))
        Path(f"data/{size}.jsonl.zst").write_bytes(packed)
        rows = [None if row % 4 == 0 else f"data/{size}.parquet row {row}{PADDING}" for row in range(1, count + 1)]
        write_parquet(Path(f"data/{size}.parquet"), rows, row_group=5)
        Path(f"data/{size}.txt").write_text(f"data/{size}.txt" + PADDING * (30 if size == "large" else 1))


def opened(source: dict[str, object]) -> OpenSource:
    config = make_config({"web": source}, [STAGE], tokenizer=BYTES)
    return open_sources(config, prepare=True).sources["web"]


def documents(source: OpenSource) -> Iterator[tuple[str, str | None]]:
    """The text of every document, and where it is said to come from."""
    assert isinstance(source.blocks, FileBlocks)
    for document in range(source.blocks.num_documents):
        file, start, end = source.blocks.document_span(document)
        text = ByteTokenizer().decode(source.blocks.files[file].open().tokens[start:end].tolist())
        yield text, source.origin_of(document)


@pytest.mark.parametrize("validation", [None, 0.5])
def test_documents_of_every_form_come_from_their_lines(validation: float | None) -> None:
    write_every_form()
    source = opened({"kind": "text", "path": "data", "bad_lines": 0.5, "validation": validation})
    assert isinstance(source.blocks, FileBlocks)
    assert len(source.blocks.files) > 20
    said = {text.partition("|")[0]: place for text, place in documents(source)}
    assert len(said) > 900
    assert {place: place for place in said} == said


def test_a_line_of_a_slice_is_counted_in_its_own_file() -> None:
    answer = {"role": "assistant", "content": "x"}
    for name in ("a.jsonl", "b.jsonl"):
        asked = [f"data/{name} line {line}|" for line in range(1, 21)]
        talks = [{"messages": [{"role": "user", "content": question}, answer]} for question in asked]
        talks[3] = {"messages": []}
        lines = [*map(json.dumps, talks)]
        lines[7] = ""
        Path(f"data/{name}").write_text("\n".join(lines) + "\n")
    for keys in ({}, {"start": 5, "stop": 33}):
        source = opened({"kind": "chat", "path": "data", "bad_lines": 0.5, **keys})
        said = {text.partition("|")[0]: place for text, place in documents(source)}
        assert {place: place for place in said} == said
        assert len(said) == (25 if keys else 36)


def test_conversations_of_a_task_are_numbered() -> None:
    source = opened({"kind": "chat", "task": "spelling", "size": 4})
    assert [place for _, place in documents(source)] == [f"task spelling, conversation {n}" for n in (1, 2, 3, 4)]


def test_rows_of_a_dataset_are_counted_from_its_start() -> None:
    assert str(InputLine("data/saved", 3, "", "rows", 20)) == "data/saved row 23"


def test_inspect_shows_file_and_line_and_without_a_record_the_token_file(folder: Path, own_cache: Path) -> None:
    Path("data/a.jsonl").write_bytes(numbered("a.jsonl", 6))
    Path("data/b.jsonl").write_bytes(b"\n\n" + numbered("b.jsonl", 6).replace(b"line ", b"after two, "))
    Path("run.toml").write_text(CONFIG)
    assert trivium(folder, "prepare", "run.toml")[0] == 0
    code, out, err = trivium(folder, "inspect", "run.toml", "--find", "a.jsonl line 5")
    assert (code, err) == (0, "")
    assert out.startswith("document 4 of web in data/a.jsonl line 5: ... data/a.jsonl")
    _, out, _ = trivium(folder, "inspect", "run.toml", "--document", "web:6")
    assert out.startswith("document 6 of web is data/b.jsonl line 3.\n")
    _, out, _ = trivium(folder, "inspect", "run.toml", "--step", "0")
    shown = " ".join(out.split())
    places = re.findall(r"in (data/[ab]\.jsonl line \d+), tokens 0", shown)
    texts = re.findall(r"(data/[ab]\.jsonl) (line|after two,) (\d+)\|", shown)
    assert places == [f"{file} line {int(line) + 2 * (says != 'line')}" for file, says, line in texts] != []
    for record in own_cache.glob("prepared/*/*.origins.json"):
        record.rename(record.with_suffix(".gone"))
    code, out, err = trivium(folder, "inspect", "run.toml", "--find", "a.jsonl line 5")
    assert (code, err) == (0, "")
    assert out.startswith("document 4 of web in 00000.ds: ... data/a.jsonl")
    _, out, _ = trivium(folder, "inspect", "run.toml", "--document", "web:6")
    assert out.startswith(("step ", "document 6 of web is read"))

"""Rows of a task's files: what the reader of sources refuses, a task refuses in the same words."""

from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from tests.support.texts import write_lines, write_parquet
from trivium.errors import SourceError
from trivium.tasks.open import open_task
from trivium.textfiles.documents import TextDocuments
from trivium.textfiles.inputs import list_inputs


def refused_by_a_source(path: Path) -> str:
    with pytest.raises(SourceError) as caught:
        list(TextDocuments("web", list_inputs([str(path)])).read(lambda _: None))
    return str(caught.value)


def refused_by_a_task(path: Path) -> str:
    with pytest.raises(SourceError) as caught:
        list(open_task("jsonl", path=str(path)))
    return str(caught.value)


@pytest.mark.parametrize("name", ["train.jsonl.gz", "train.jsonl.zst", "train.parquet"])
def test_a_truncated_file_is_refused_as_for_sources(tmp_path: Path, name: str) -> None:
    texts = [str(number) * 50 for number in range(5000)]
    write = write_parquet if name.endswith(".parquet") else write_lines
    path = write(tmp_path / name, texts)
    path.write_bytes(path.read_bytes()[:-20])
    said = refused_by_a_task(path)
    assert said == refused_by_a_source(path)
    assert said.startswith(f"{path}: cannot be read: ")
    assert said.endswith(". It is truncated or damaged: copy it again, or take it out.")


def test_parquet_with_damaged_pages_is_refused_as_for_sources(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "train.parquet", [str(number) * 99 for number in range(999)])
    whole = path.read_bytes()
    path.write_bytes(whole[:4] + bytes(len(whole) // 2) + whole[4 + len(whole) // 2 :])
    for said in (refused_by_a_task(path), refused_by_a_source(path)):
        assert said.startswith(f"{path}: cannot be read: ")
        assert said.endswith(". It is truncated or damaged: copy it again, or take it out.")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"messages": "cut', "broken JSON"),
        (b'{"messages": "half \\ud800"}', "broken JSON"),
        (b'{"messages": "\xff"}', "invalid UTF-8"),
        (b'{"messages": "' + b"x" * 200 + b'"}', "over 200 MB"),
        (b"3", "not a JSON object"),
    ],
    ids=["broken", "surrogate", "utf-8", "long", "number"],
)
@pytest.mark.parametrize("end", [b"\n", b""], ids=["ended", "open"])
def test_a_bad_line_is_named_with_the_reason_that_sources_give(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: bytes, reason: str, end: bytes
) -> None:
    monkeypatch.setattr("trivium.textfiles.read.MOST_BYTES", 100)
    path = tmp_path / "train.jsonl"
    path.write_bytes(b'\n{"messages": []}\n' + line + end)
    task = open_task("jsonl", path=str(path))
    assert (len(task), task[0]) == (2, {"messages": []})
    with pytest.raises(SourceError) as caught:
        task[1]
    assert str(caught.value) == f"{path} line 3: {reason}. Fix it, or take it out."
    assert f"1 {reason}: train.jsonl line 3" in refused_by_a_source(path)


def test_a_row_of_parquet_that_is_not_utf8_is_named_as_for_sources(tmp_path: Path) -> None:
    column = pyarrow.array([b"a", b"\xff"], pyarrow.binary()).view(pyarrow.string())
    path = tmp_path / "train.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"text": column}), path)
    assert refused_by_a_task(path) == f"{path} row 2: invalid UTF-8. Fix it, or take it out."
    assert "1 invalid UTF-8: train.parquet row 2" in refused_by_a_source(path)


def test_rows_of_several_files_keep_the_line_numbers_of_each(tmp_path: Path) -> None:
    for number in range(2):
        (tmp_path / f"train-{number}.jsonl").write_text('{"messages": []}\n{\n')
    task = open_task("jsonl", path=str(tmp_path))
    with pytest.raises(SourceError) as caught:
        task[3]
    assert str(caught.value) == f"{tmp_path}/train-1.jsonl line 2: broken JSON. Fix it, or take it out."

"""Files of text read for their documents: every form that prepare reads, and the same faults."""

from pathlib import Path

import pytest

from tests.support.texts import write_lines, write_parquet
from trivium.errors import SourceError
from trivium.textfiles.documents import TextDocuments
from trivium.textfiles.inputs import find_inputs, list_inputs


def documents(*paths: Path, most_bad: float = 0.001) -> TextDocuments:
    return TextDocuments("web", list_inputs([str(path) for path in paths]), most_bad=most_bad)


def test_every_form_gives_its_documents_and_all_bytes_are_told(tmp_path: Path) -> None:
    write_lines(tmp_path / "web" / "a.jsonl", ["one", "two"])
    write_lines(tmp_path / "web" / "b.jsonl.gz", ["three"])
    write_lines(tmp_path / "web" / "c.jsonl.zst", ["four"])
    write_parquet(tmp_path / "web" / "d.parquet", ["five", "six", "seven", "eight"])
    (tmp_path / "web" / "src").mkdir()
    (tmp_path / "web" / "src" / "main.py").write_text("def f():\n    return 9\n")
    found, told = documents(tmp_path / "web"), list[int]()
    texts = list(found.read(told.append))
    assert texts == ["one", "two", "three", "four", "five", "six", "seven", "eight", "def f():\n    return 9\n"]
    size = sum(path.stat().st_size for path in (tmp_path / "web").rglob("*") if path.is_file())
    assert (sum(told), found.size, found.lines, list(found.bad.lines())) == (size, size, 9, [])


def test_listed_files_are_those_that_are_hashed(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl", ["one"])
    (tmp_path / "b.txt").write_text("two")
    listed, hashed = list_inputs([str(tmp_path)]), find_inputs([str(tmp_path)])
    assert [(file.name, file.reader, file.size) for file in listed] == [
        (file.name, file.reader, file.size) for file in hashed
    ]
    assert [bool(file.hash) for file in (*listed, *hashed)] == [False, False, True, True]


def test_lines_without_a_document_are_counted_with_their_places(tmp_path: Path) -> None:
    lines = '{"text": "one"}\n{"text": ""}\n{\n{"body": "x"}\n{"text": "two"}\n'
    (tmp_path / "a.jsonl").write_text(lines)
    (tmp_path / "b.bin").write_bytes(b"\0\0")
    found = documents(tmp_path, most_bad=0.5)
    assert list(found.read(lambda _: None)) == ["one", "two"]
    assert list(found.bad.lines()) == [
        "1 a binary file: b.bin",
        "1 broken JSON: a.jsonl line 3",
        "1 empty: a.jsonl line 2",
        '1 no "text", but body: a.jsonl line 4',
    ]


def test_too_many_of_them_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n{\n')
    with pytest.raises(SourceError) as caught:
        list(documents(tmp_path).read(lambda _: None))
    assert str(caught.value) == (
        "web: 1 of 2 lines hold no document, 50.00%: over the limit of 0.001. Fix them, or allow 0.5 with "
        "--bad-lines, or with bad_lines in the source.\n  1 broken JSON: a.jsonl line 2"
    )


def test_a_column_that_no_line_has_is_the_only_thing_said(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"body": "one"}\n{"body": "two"}\n{"id": 3, "body": "three"}\n')
    with pytest.raises(SourceError) as caught:
        list(documents(tmp_path).read(lambda _: None))
    assert str(caught.value) == (
        'web: none of 3 lines has the column "text": a.jsonl line 1 has body. '
        'Write column = "body" in the source, or --column body.'
    )


@pytest.mark.parametrize("line", ['{"text": null, "id": 3}', '{"text": 3}', "{}", "{"])
def test_lines_that_are_wrong_in_another_way_are_not_told_of_a_column(tmp_path: Path, line: str) -> None:
    (tmp_path / "a.jsonl").write_text(f"{line}\n")
    with pytest.raises(SourceError, match=r"web: 1 of 1 lines hold no document, 100\.00%.* allow 1 with --bad-lines"):
        list(documents(tmp_path).read(lambda _: None))


def test_a_file_that_is_cut_short_is_named(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl.gz", ["one"] * 100)
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(SourceError) as caught:
        list(documents(path).read(lambda _: None))
    assert str(caught.value) == (
        f"{path}: cannot be read: Compressed file ended before the end-of-stream marker was reached. It is truncated "
        f"or damaged: copy it again, or take it out."
    )
